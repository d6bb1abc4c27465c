"""The command `asd`. What imports torch is imported when a command runs, so `asd --help` is instant."""

import os
import sys
from contextlib import nullcontext, redirect_stdout
from io import StringIO, TextIOWrapper
from typing import Annotated, NoReturn

import typer

from antishortcut import __version__
from antishortcut.cli import analyze, data, evaluate, info, suite, train
from antishortcut.errors import UserError, first_line, of_disk, one_line
from antishortcut.progress import first_process, one_line_warnings, own_exit_code
from antishortcut.training.signals import Stopped, StopRequest, interruptible, stopped_by

app = typer.Typer(
    name="asd", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _version(show: bool) -> None:
    """Print the version and exit."""
    if show:
        print(f"asd {__version__}")
        raise typer.Exit


@app.callback()
def _asd(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help=_version.__doc__)
    ] = False,
) -> None:
    """Distil a vision model without handing down its shortcuts."""


for command in (
    *(
        train.demo,
        train.init,
        train.teach,
        train.rewind,
        train.distill,
        evaluate.evaluate,
        evaluate.predict,
        evaluate.report,
    ),
    *(analyze.audit, data.check, data.plant, data.corrupt, data.stylize, evaluate.export, analyze.targets),
    *(info.bench, info.selftest, info.doctor),
):
    app.command()(command)
app.command("try")(analyze.try_)
app.command("list")(info.list_)
app.add_typer(suite.app, name="suite")


@own_exit_code()
@one_line_warnings()
def main() -> NoReturn:
    """Run the command. Bad input is one line and exit code 2; a signal is 128 + its number."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # threads that wait soon sleep: spinning ruins a shared machine
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no text at all
    stop = StopRequest()
    try:
        with interruptible(stop), nullcontext() if first_process() else redirect_stdout(StringIO()):
            code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Stopped as error:
        _stopped(str(error), error.code)
    except UserError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder without write permission
        _fail(of_disk(error))
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        if hasattr(error, "format_message"):  # typer's: bad arguments
            _fail(f"{one_line(error.format_message()).rstrip('.')}; see --help")
        is_out_of_memory = isinstance(error, MemoryError)
        if "torch" in sys.modules:
            from antishortcut.training import microbatch

            is_out_of_memory = microbatch.is_out_of_memory(error)
        if is_out_of_memory:
            _fail(one_line(f"out of memory ({first_line(error)}); use a smaller batch, fewer images or more memory"))
        raise
    if stop.number:  # typer may have replaced the exit code
        _stopped(stopped_by(stop.number), 128 + stop.number)
    sys.exit(code)


def _fail(line: str) -> NoReturn:
    print(f"asd: {line}", file=sys.stderr)
    sys.exit(2)


def _stopped(line: str, code: int) -> NoReturn:
    if first_process():
        print(f"asd: {one_line(line)}", file=sys.stderr)
    sys.exit(code)

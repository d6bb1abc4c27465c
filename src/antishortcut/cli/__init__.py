"""The command `asd`. Sub-commands import what they need when they run, so that `asd --help` is instant."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, redirect_stdout
from io import StringIO, TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer

from antishortcut.cli import analyze as audit
from antishortcut.cli import analyze as targets
from antishortcut.cli import bench, export, suite
from antishortcut.cli import data as check
from antishortcut.cli import data as corrupt
from antishortcut.cli import data as stylize
from antishortcut.cli import evaluate as scores
from antishortcut.cli import info as doctor
from antishortcut.cli import info as lists
from antishortcut.cli import train as runs
from antishortcut.distributed import own_exit_code
from antishortcut.errors import UserError, first_line, of_disk, one_line
from antishortcut.progress import first_process
from antishortcut.training.signals import Stopped, StopRequest, ending, stopped_by

app = typer.Typer(
    name="asd",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        from antishortcut import __version__

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
    *(runs.demo, runs.init, runs.teach, runs.rewind, runs.distill, scores.evaluate, scores.report, audit.audit),
    *(check.check, corrupt.corrupt, stylize.stylize, export.export, targets.targets, bench.bench, doctor.doctor),
):
    app.command()(command)
app.command("list")(lists.list_)
app.add_typer(suite.app, name="suite")


def main() -> None:
    """Run the command, and end with its code, also where several processes work together."""
    with own_exit_code():
        _main()


def _main() -> NoReturn:
    """Run the command; what is wrong with the input is one line and exit code 2."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # threads that wait soon sleep: spinning ruins a shared machine
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no text at all
    heard = StopRequest()
    try:
        with ending(heard), nullcontext() if first_process() else redirect_stdout(StringIO()):  # results are told once
            code = app(standalone_mode=False)
        sys.exit(_ended(heard) if heard.number else code)  # typer may have made a code of its own of it
    except (UserError, OSError) as error:  # a full disk, a folder that may not be written, a file in its place
        print(f"asd: {of_disk(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(_ended(heard) if heard.number else 130)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's: what is wrong with the words of a command
            _refuse(error)
        if _is_shortage(error):
            what = f"memory is short ({first_line(error)}); take a smaller batch or fewer images, or a larger machine"
            print(f"asd: {one_line(what)}", file=sys.stderr)
            sys.exit(2)
        if not isinstance(error, Stopped):
            raise
        if first_process():  # the others say the same
            print(f"asd: {one_line(str(error))}", file=sys.stderr)
        sys.exit(error.code)


def _ended(heard: StopRequest) -> int:
    if first_process():
        print(f"asd: {stopped_by(heard.number)}", file=sys.stderr)
    return 128 + heard.number


def _is_shortage(error: Exception) -> bool:
    """Whether memory was short; what torch says of that is asked only where torch is there already."""
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from antishortcut.training.microbatch import is_out_of_memory

    return is_out_of_memory(error)


def _refuse(error: Any) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        print(f"asd: {one_line(error.format_message()).rstrip('.')}; see --help", file=sys.stderr)
    sys.exit(error.exit_code)

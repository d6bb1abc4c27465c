"""Commands in processes forked from one that has imported torch, and the command line that all parts share.

A fork is taken before any thread is started, with one thread for every library, so that it computes what a fresh
process computes; `torture.kills` compares the two.
"""

import argparse
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before anyone imports torch or numpy
    os.environ[_name] = "1"
os.environ.setdefault("ANTISHORTCUT_NATIVE", "float32")  # what is compared bit by bit is the same on all machines
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
STOPPING = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP", "SIGUSR2", "SIGXCPU")  # signals that ask for an end
LONGEST = 600.0  # seconds of a tiny command; longer is hanging


def ready() -> None:
    """Import what commands import, so that a fork starts at once."""
    import torch.utils.tensorboard  # noqa: F401

    import antishortcut.cli
    import antishortcut.evaluation
    import antishortcut.training.pipeline  # noqa: F401


def part_main(torment: Callable[..., dict[str, Any]]) -> None:
    """The command line of a part: keywords of `torment` are options, its result is JSON on stdout."""
    parser = argparse.ArgumentParser(description=sys.modules[torment.__module__].__doc__)
    for name, parameter in inspect.signature(torment).parameters.items():
        option, default = f"--{name.replace('_', '-')}", parameter.default
        if isinstance(default, bool):
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    result = torment(**vars(parser.parse_args()))
    print(json.dumps(result, indent=1))
    sys.exit(not result["identical"])


def progress(result: object) -> None:
    print(json.dumps(result), file=sys.stderr, flush=True)


class Command:
    """`asd` with these words, in a session of its own."""

    def __init__(self, words: Sequence[str], log: Path, cwd: Path | None = None) -> None:
        assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
        self.words, self.log = list(words), log
        self.code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(self.words, log, cwd)

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float = LONGEST) -> int:
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(f"asd {' '.join(self.words)}: not done after {seconds:.0f} s; see {self.log}")
            time.sleep(0.005)
        return code

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self, family: bool = True) -> None:
        """SIGKILL to the command and, as a machine that goes down does, to all that it has started."""
        rest = list(descendants(self.pid)) if family else []
        for pid in (self.pid, *rest):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.code = self.wait(60)


def descendants(pid: int) -> Iterator[int]:
    """The living children of a process, and theirs."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield child
        yield from descendants(child)


def _become(words: Sequence[str], log: Path, cwd: Path | None) -> None:
    """In the child: never returns."""
    code = 70
    try:
        os.setsid()
        for name in STOPPING:  # nohup and shells that start in the background have some of them ignored
            signal.signal(getattr(signal, name), signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for handle in (1, 2):
            os.dup2(out, handle)
        if cwd is not None:
            os.chdir(cwd)
        sys.argv = ["asd", *words]
        from antishortcut.cli import main

        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)

"""Progress of a run: a bar at a terminal or in a notebook, plain lines elsewhere, on stderr; how a process exits."""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from antishortcut.errors import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

EVERY = 20.0  # seconds between plain lines
BAR = 12  # characters of a bar at a terminal
OTHERS = BAR + len(" 100% 0:00:00  ") + 1  # and of what else stands in its line beside title and terms
REDRAW = 0.5  # seconds between two states of a notebook's bar


def first_process() -> bool:
    """Of the processes that share a run, the one that prints (torchrun, Slurm and Fabric number them so)."""
    return all(int(os.environ.get(name, "0") or 0) == 0 for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK", "NODE_RANK"))


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel")


def console() -> Console:
    from rich.console import Console

    if in_notebook():  # where stderr is shown as a failure, and a line of rich is a page of its own
        return Console(file=sys.stdout, force_jupyter=False, highlight=False, quiet=not first_process(), soft_wrap=True)
    return Console(stderr=True, highlight=False, quiet=not first_process(), soft_wrap=True)


class ProgressBar:
    """Progress of one run."""

    def __init__(self, title: str, total: int, quiet: bool = False, images: int = 0) -> None:
        self.title, self.total, self.quiet = title, total, quiet
        self.images = images  # of a step, for images per second
        self.started = self.last = time.monotonic()
        self.first = self.step = 0
        self.bar: Progress | None = None
        self.notebook = not quiet and first_process() and in_notebook()
        self.cell: Any = None  # of a notebook, from REDRAW seconds on: what it shows is replaced, so one output stays
        if not quiet and not self.notebook and sys.stderr.isatty():
            from rich import markup
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            what, terms = TextColumn("{task.description}"), TextColumn("{task.fields[terms]}")
            columns = (what, BarColumn(BAR), TaskProgressColumn(), TimeRemainingColumn(), terms)
            self.bar = Progress(*columns, console=console(), transient=True)
            self.task = self.bar.add_task(markup.escape(printable(title)), total=total, terms="")

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.cell is not None:
            self._draw(self.step, f"{time.monotonic() - self.started:.0f} s")

    def begin(self, step: int) -> None:
        """Work starts, or goes on, at this step."""
        self.first = self.step = step
        self.started = self.last = time.monotonic()
        if self.bar is not None:
            self.bar.reset(self.task, completed=step, total=self.total)

    def update(self, step: int, terms: dict[str, float]) -> None:
        if self.quiet:
            return
        text, speed = " ".join(f"{name} {value:.3f}" for name, value in terms.items()), ""
        self.step, seconds = step, time.monotonic() - self.started
        if self.images and seconds > 0:
            speed = f"{self.images * (step - self.first) / seconds:,.0f} images/s"
        if self.bar is not None:
            self.bar.update(self.task, completed=step, terms=self._fitting(speed, terms))
        elif self.notebook:
            if time.monotonic() - self.last > REDRAW:
                self.last = time.monotonic()
                self._draw(step, f"{speed} {text}".strip())
        elif time.monotonic() - self.last > EVERY:
            self.last = time.monotonic()
            left = f"{seconds / max(step - self.first, 1) * (self.total - step):.0f} s left"
            self.say(", ".join(filter(None, (f"step {step}/{self.total}", speed, left, text))))

    def _fitting(self, speed: str, terms: dict[str, float]) -> str:
        """As much as a line has room for beside title, bar, percentage and the time that is left."""
        assert self.bar is not None
        room, text = self.bar.console.width - len(printable(self.title)) - OTHERS, speed
        for name, value in terms.items():
            if len(longer := f"{text} {name} {value:.3f}".strip()) > room:
                break
            text = longer
        return text

    def _draw(self, step: int, text: str) -> None:
        ipython: Any = import_module("IPython.display")
        html = ipython.HTML(self._html(step, text))
        if self.cell is None:
            self.cell = ipython.display(html, display_id=True)
        else:
            self.cell.update(html)

    def _html(self, step: int, text: str) -> str:
        bar = f'<progress value="{step}" max="{self.total or 1}"></progress>'
        return f"<div>{escape(printable(self.title))} {bar} {step}/{self.total or '?'} {escape(text)}</div>"

    def say(self, text: str) -> None:
        """Print a line. Where stderr is a full disk the line is lost, and training goes on."""
        if not self.quiet:
            target = self.bar.console if self.bar is not None else console()
            with suppress(OSError):
                target.print(printable(f"{self.title}: {text}"), markup=False)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Warnings as notes of one line, without the source line that gave them."""
    original = warnings.formatwarning
    if in_notebook():  # tqdm's, which other libraries import: bars here need no widgets
        warnings.filterwarnings("ignore", message="IProgress not found")
    warnings.formatwarning = lambda message, *_, **__: f"Note: {one_line(str(message))}\n"
    try:
        yield
    finally:
        warnings.formatwarning = original


@contextmanager
def own_exit_code() -> Iterator[None]:
    """Exit with the code this block ends with, whatever torch's threads do meanwhile.

    A gloo thread that still holds a tensor may abort the process while Python shuts down (pytorch issue 190489). So a
    process that was part of a group exits before that. This is registered first, so it is called last.
    """
    code = 1  # a traceback's

    def exit_at_once() -> None:
        dist = sys.modules.get("torch.distributed")  # not imported for this
        if dist is not None and dist.is_available() and dist.is_initialized():
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):  # nobody reads it any more
                    stream.flush()
            os._exit(code)

    atexit.register(exit_at_once)
    try:
        yield
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise

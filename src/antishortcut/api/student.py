"""What the functions return: a student, which is a finished run folder, and pages that a notebook shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antishortcut.api.arguments import open_session
from antishortcut.api.objects import register_again
from antishortcut.api.scoring import numbers, own_sets
from antishortcut.errors import UserError
from antishortcut.report import make_report
from antishortcut.run_dir import RunDir

if TYPE_CHECKING:
    from torch import nn

    from antishortcut.deployment import Export
    from antishortcut.deployment.verify import OpenedRun
    from antishortcut.training.pipeline import Session

HEIGHT = 700  # pixels of a page in a notebook


@dataclass(frozen=True)
class HtmlPage:
    """A page on disk; a notebook shows it."""

    path: Path

    def _repr_html_(self) -> str:
        page = escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="{HEIGHT}" style="border:0"></iframe>'


@dataclass(frozen=True)
class Audit(HtmlPage):
    """The page of an audit, and its numbers: the content of audit.json."""

    result: dict[str, Any] = field(repr=False)


class Student:
    """A distilled student. `Student("runs/photos/asd-s1")` opens one that was trained before.

    student, teacher: the modules that it was trained with, if they were Python objects of another session.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        student: nn.Module | None = None,
        teacher: nn.Module | None = None,
        data_root: str | Path | None = None,
        session: Session | None = None,
    ) -> None:
        self.path = Path(path)
        self.run, _ = RunDir(self.path).read()
        if not RunDir(self.path).finished:
            raise UserError(f"{path} is not finished; run its command again to resume it")
        register_again(self.path.resolve().parent.parent, self.run, student, teacher)
        self.also: list[dict[str, Any]] = []  # scores of the folders that `distill` was asked for
        root = None if data_root is None else Path(data_root)
        self.session = session or open_session(self.path.resolve().parent.parent, root, False)

    @cached_property
    def _opened(self) -> OpenedRun:
        from antishortcut.deployment.verify import open_run

        return open_run(RunDir(self.path), own_sets(self.run, self.session))

    @cached_property
    def model(self) -> nn.Module:
        """Raw images (B, 3, H, W) in [0, 1] → logits (B, C). An ordinary module, in evaluation mode, on the CPU."""
        from antishortcut.deployment.verify import ExportModule

        return ExportModule(self._opened.network).requires_grad_(True).eval()

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of its outputs, in their order; empty if its data are not here."""
        return self._opened.names

    @property
    def image_size(self) -> int:
        """The side of the images it was trained on."""
        return self._opened.side

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """What was measured: {set: {score: number}}."""
        return numbers(RunDir(self.path).scores())

    def report(self, columns: str | None = None) -> HtmlPage:
        """The page of this run and the others in its folder, to compare them."""
        return HtmlPage(Path(make_report(self.path.parent, columns)["page"]))

    def evaluate(self, on: str | list[str] = "clean", **options: Any) -> dict[str, dict[str, Any]]:
        """Measure more: see `antishortcut.evaluate`."""
        from antishortcut.api import evaluate

        return evaluate(self, on, **options)

    def export(self, to: str = "onnx", **options: Any) -> Export:
        """Write it for deployment: see `antishortcut.export`."""
        from antishortcut.api import export

        return export(self, to, **options)

    def __repr__(self) -> str:
        metric, value = RunDir(self.path).primary_metric()
        return f"Student({str(self.path)!r}, {metric} {value:.3f})"

    def _repr_html_(self) -> str:
        rows = [(name, key, value) for name, scores in self.scores.items() for key, value in scores.items()]
        cells = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(key)}</td><td>{value:,.4g}</td></tr>"
            for name, key, value in rows
            if isinstance(value, int | float)
        )
        head = "<tr><th>set</th><th>score</th><th>value</th></tr>"
        return f"<p><b>{escape(self.run.name)}</b>: {escape(str(self.path))}</p><table>{head}{cells}</table>"

"""All figures of a report, in the order of its page."""

from __future__ import annotations

from dataclasses import dataclass, field

from antishortcut.report.charts import Figure
from antishortcut.report.collect import Found
from antishortcut.report.direction_reader import Directions
from antishortcut.report.mechanism_figures import embeddings, mechanism
from antishortcut.report.reader import Aside, Notes
from antishortcut.report.robustness import corrupted, differences, leaning
from antishortcut.report.scatter import Scatter
from antishortcut.report.segmentation_figures import Gallery, galleries
from antishortcut.report.sweep import Sweep
from antishortcut.report.table import Table
from antishortcut.report.training_curves import training
from antishortcut.report.trajectory_figures import trajectory


@dataclass(frozen=True)
class Drawn:
    """Figures by the part of the page they stand in; those there are data for."""

    differences: list[Figure]
    leaning: list[Figure]
    corrupted: list[Figure]
    scenes: list[Gallery]
    mechanism: list[Figure]
    embeddings: list[Figure]
    teachers: list[tuple[Directions, list[Figure]]]
    training: list[Figure]
    notes: tuple[Aside, ...]  # on what could not be drawn
    sweep: list[tuple[Sweep, Figure]] = field(default_factory=list)  # these two when asked for
    scatter: list[tuple[Scatter, Figure]] = field(default_factory=list)

    def all(self) -> list[Figure]:
        """In the order of the page."""
        teachers = [figure for _, figures in self.teachers for figure in figures]
        requested = [figure for _, figure in (*self.sweep, *self.scatter)]
        students = [self.differences, requested, self.leaning, self.corrupted, self.mechanism, self.embeddings]
        return [figure for figures in (*students, teachers, self.training) for figure in figures]


def figures(found: Found, table: Table) -> Drawn:
    def filled(drawn: list[Figure]) -> list[Figure]:
        return [figure for figure in drawn if figure.panels]

    notes = Notes()
    return Drawn(
        differences=filled(differences(found, table)),
        leaning=filled(leaning(found, table)),
        corrupted=filled(corrupted(found, table)),
        scenes=galleries(found, table, notes),
        mechanism=filled(mechanism(found, table)),
        embeddings=embeddings(found, notes),
        teachers=[(held, trajectory(held, number)) for number, held in enumerate(found.directions)],
        training=filled(training(found)),
        notes=tuple(notes.found),
    )

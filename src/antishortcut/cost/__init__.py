"""What a suite will cost: steps of every kind measured here, times how many there are. No torch but in `measure`.

seconds = Σ over trainings of epochs × steps of an epoch × seconds of a step

Only training steps count; evaluation does not.
"""

from antishortcut.cost.estimate import Clock, Cost, Measured, Row, known_cost, measured_cost
from antishortcut.cost.groups import Group, Piece, Size, pieces, size_of, steps_of
from antishortcut.cost.kept import Machine, Timing, read_book

__all__ = [
    "Clock",
    "Cost",
    "Group",
    "Machine",
    "Measured",
    "Piece",
    "Row",
    "Size",
    "Timing",
    "known_cost",
    "measured_cost",
    "pieces",
    "read_book",
    "size_of",
    "steps_of",
]

"""Inspect a data set before training: what it holds, what is wrong with it, and what training will see of it."""

from antishortcut.data.inspect.scan import Finding, check_augment, look, open_finding, usual_augment, usual_side
from antishortcut.data.inspect.sheet import contact_sheet
from antishortcut.data.inspect.summary import SHOWN, advice, problems, summarise

__all__ = [
    "SHOWN", "Finding", "advice", "check_augment", "contact_sheet", "look", "open_finding", "problems", "summarise",
    "usual_augment", "usual_side",
]  # fmt: skip

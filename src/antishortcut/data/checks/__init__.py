"""Look before you train: what a set holds, what is wrong with it, and what training will see of it."""

from antishortcut.data.checks.advice import advice, problems
from antishortcut.data.checks.finding import Finding, check_augment, open_finding, usual_augment, usual_side
from antishortcut.data.checks.looking import Seen, look
from antishortcut.data.checks.sheet import contact_sheet
from antishortcut.data.checks.summary import SHOWN, summarise

__all__ = [
    "SHOWN",
    "Finding",
    "Seen",
    "advice",
    "check_augment",
    "contact_sheet",
    "look",
    "open_finding",
    "problems",
    "summarise",
    "usual_augment",
    "usual_side",
]

"""Look before you train: what a set holds, what is wrong with it, and what training will see of it."""

from antishortcut.data.inspect.advice import advice, problems
from antishortcut.data.inspect.looking import Seen, look
from antishortcut.data.inspect.scan import Finding, check_augment, open_finding, usual_augment, usual_side
from antishortcut.data.inspect.sheet import contact_sheet
from antishortcut.data.inspect.summary import SHOWN, summarise

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

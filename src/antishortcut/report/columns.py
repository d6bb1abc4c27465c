"""What a column of the tables is: the set it belongs to, which way is better, how a person asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antishortcut.errors import UserError, near
from antishortcut.report.scores import CORRUPTIONS, GROUPS, MECHANISM, SCENES

TRAINING = ("last", "best")
KINDS = {  # of corruptions, in the paper's words (S-Sec. A.3)
    "texture": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
}
MORE = {"accuracy", "accuracy_overlap", "clean_accuracy", "shape_bias", "worst_group", "mean_group", "adjusted"}
MORE |= {"miou"}  # of segmentation
MORE |= {"hard_accuracy", "easy_accuracy", "balanced_accuracy"}  # images that T_early gets wrong, and right
LESS = {"mce", "mce_all", "mce_relative", "mce_relative_5", "clean_error", "error", "gap"}
LESS_CORRUPTED = {*KINDS, *(f"{kind}_all" for kind in KINDS)}

FEW = 3  # numbers of a score file that the first table shows when it knows none of them
USUAL = ("miou", "accuracy", "shape_bias")
SHOWN = {
    CORRUPTIONS: ("mce", "mce_relative"),
    "stylized": ("accuracy", "gap"),
    "imagenet-r": ("accuracy", "accuracy_overlap"),
    "imagenet-a": ("accuracy", "accuracy_overlap"),
    GROUPS: ("worst_group", "mean_group"),
    "attack": ("1/255", "4/255"),
    "hard": ("hard_accuracy", "balanced_accuracy"),
    SCENES: ("agreement",),
}
SHIFTED = (
    CORRUPTIONS,
    "stylized",
    "cue-conflict",
    "imagenet-r",
    "imagenet-a",
    GROUPS,
    "attack",
    "hard",
    SCENES,
)  # after the data's own
MEASURES = ("cos_final", "cos_early", "projection")  # of the mechanism
VIEWS = ("aligned", "raw", "projector")  # the first that there is, is the ruler of the first table
RANDOM = {  # measure → what a random direction would have
    "projection": "projection_random",
    "projection_final": "projection_random",
    "projection_early": "projection_random",
    "robust_projection": "robust_random",
    "head_share": "head_random",
}
PROJECTIONS = ("projection", "robust_projection")  # of the student, those that are drawn
BASELINES = {*RANDOM.values(), "random"}
WORDS = {
    "miou": "mIoU",
    "agreement": "agreement with the teacher",
    "mce": "mCE",
    "mce_all": "mCE, all severities",
    "mce_relative": "relative mCE",
    "mce_relative_5": "relative mCE, severity 5",
    "cos_final": "cosine to T_final",
    "cos_early": "cosine to T_early",
    "closer_final": "closer to T_final",
    "closer_to_final": "closer to T_final",
    "signed_cosine": "signed cosine",
    "signed_above": "above −0.1",
    "projection": "on shortcut directions",
    "robust_projection": "on robust directions",
    "projection_change": "change against kd",
    "projection_final": "T_final on shortcut directions",
    "projection_early": "T_early on shortcut directions",
    "hinge_share": "share above the hinge",
    "hinge_mean": "mean above the hinge",
    "infonce_binary": "InfoNCE, binary",
    "infonce_full": "InfoNCE, full",
    "infonce_ceiling": "its ceiling",
    "head_share": "head’s share of shortcut directions",
    "shift_largest": "largest logit shift",
    "shift_bound": "its bound",
}


def parts(column: str) -> tuple[str, str]:
    """("conflict", "accuracy"): the set, or the mechanism's view, and the score."""
    group, _, score = column.rpartition(" ")
    return group or "training", score


def better(column: str) -> int:
    """1 where more is better, −1 where less is, 0 where neither can be said."""
    group, score = parts(column)
    if group.split(" ")[0] == MECHANISM:
        return 0
    if column in TRAINING or score in MORE or group == "attack":
        return 1
    return -1 if score in LESS or (group == CORRUPTIONS and score in LESS_CORRUPTED) else 0


def arrow(column: str) -> str:
    return {1: "↑", -1: "↓", 0: ""}[better(column)]


def words(score: str) -> str:
    """A score's name for a person."""
    return WORDS.get(score, score.replace("_", " "))


def opening(text: str) -> str:
    """Words that open a title: Accuracy, but mIoU."""
    return text if text[:2] == "mI" else text[:1].upper() + text[1:]


def random_of(column: str) -> str | None:
    """The column that says how far a random direction would project, for a column that is a projection."""
    group, score = parts(column)
    return f"{group} {RANDOM[score]}" if score in RANDOM and group.startswith(MECHANISM) else None


def ordered(names: Iterable[str]) -> list[str]:
    """last, best, the data's own sets by name, shifted sets, the mechanism; within a set mIoU, then as in its file."""
    return sorted(dict.fromkeys(names), key=_place)


def _place(column: str) -> tuple[int, int, str, bool]:
    return *_set(column), parts(column)[1] != "miou"


def _set(column: str) -> tuple[int, int, str]:
    group, _ = parts(column)
    if column in TRAINING:
        return 0, TRAINING.index(column), ""
    if group in SHIFTED:
        return 2, SHIFTED.index(group), ""
    view = group.partition(" ")[2]
    if group.split(" ")[0] == MECHANISM:
        return 3, VIEWS.index(view) if view in VIEWS else len(VIEWS), view
    return 1, 0, group


def view_of(names: Iterable[str]) -> str | None:
    """The view that the first table shows: one ruler for all methods."""
    found = {parts(name)[0].partition(" ")[2] for name in names if name.startswith(f"{MECHANISM} ")} - {""}
    return next((view for view in VIEWS if view in found), min(found, default=None))


def shown(names: Sequence[str]) -> list[str]:
    """The columns of the first table: a few of every set; all others are further down the page."""
    view = view_of(names)
    sets: dict[str, list[str]] = {}
    for name in names:
        sets.setdefault(parts(name)[0], []).append(name)
    kept: list[str] = []
    for group, columns in sets.items():
        if group == "training":
            kept += columns
        elif group.split(" ")[0] == MECHANISM:
            kept += [c for c in columns if group == f"{MECHANISM} {view}" and parts(c)[1] in MEASURES]
        else:
            usual = [c for c in columns if parts(c)[1] in SHOWN.get(group, USUAL)]
            kept += usual or columns[:FEW]
    return kept


def chosen(wanted: str, names: Sequence[str], flag: str = "--columns") -> list[str]:
    """--columns "last,conflict accuracy,mce": whole names, or their ends where only one column ends so."""
    found: dict[str, None] = {}
    for word in (word for part in wanted.split(",") if (word := " ".join(part.split()))):
        fits = [name for name in names if name == word] or [name for name in names if name.endswith(f" {word}")]
        if not fits:
            raise UserError(f"{flag}: no column {word!r} here{_hint(word, names)}")
        if len(fits) > 1:
            raise UserError(f"{flag}: {word!r} may be {' or '.join(repr(name) for name in fits)}; write it out")
        found[fits[0]] = None
    if not found:
        raise UserError(f"{flag} names no column; known: {', '.join(names)}")
    return list(found)


def _hint(word: str, names: Sequence[str]) -> str:
    """Near names, or names whose last word is near, or all."""
    hint = near(word, names)
    ends = near(word, dict.fromkeys(parts(name)[1] for name in names))
    return ends if not hint.startswith("; did") and ends.startswith("; did") else hint

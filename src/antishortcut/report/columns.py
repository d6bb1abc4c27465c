"""Columns of the tables, "<set> <score>": labels, which way is better, their order, how --columns names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from antishortcut.errors import UserError, near
from antishortcut.report.scores import CORRUPTIONS, GROUPS, MECHANISM, SCENES

KINDS = {  # of corruptions, in the paper's words (S-Sec. A.3)
    "texture": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
}


class Metric(NamedTuple):
    label: str
    higher_is_better: bool | None = None  # None: neither way is better
    format: str = ".3f"


class Evaluation(NamedTuple):
    metrics: dict[str, Metric]
    first: tuple[str, ...] = ()  # metrics of the first table


ANY = Evaluation(  # metrics of every set of images
    {
        "accuracy": Metric("accuracy", True),
        "miou": Metric("mIoU", True),
        "error": Metric("error", False),
        "shape_bias": Metric("shape bias", True),
        "accuracy_overlap": Metric("accuracy overlap", True),
        "clean_accuracy": Metric("clean accuracy", True),
        "clean_error": Metric("clean error", False),
        "gap": Metric("gap", False),
    },
    first=("miou", "accuracy", "shape_bias"),
)
EVALUATIONS = {  # in the order of the columns
    "training": Evaluation({"last": Metric("last", True), "best": Metric("best", True)}, first=("last", "best")),
    CORRUPTIONS: Evaluation(
        {
            "mce": Metric("mCE", False),
            "mce_all": Metric("mCE, all severities", False),
            "mce_relative": Metric("relative mCE", False),
            "mce_relative_5": Metric("relative mCE, severity 5", False),
            **{kind: Metric(kind, False) for kind in KINDS},
            **{f"{kind}_all": Metric(f"{kind} all", False) for kind in KINDS},
        },
        first=("mce", "mce_relative"),
    ),
    "stylized": Evaluation({}, first=("accuracy", "gap")),
    "cue-conflict": Evaluation({}, first=ANY.first),
    "imagenet-r": Evaluation({}, first=("accuracy", "accuracy_overlap")),
    "imagenet-a": Evaluation({}, first=("accuracy", "accuracy_overlap")),
    GROUPS: Evaluation(
        {
            "worst_group": Metric("worst group", True),
            "mean_group": Metric("mean group", True),
            "adjusted": Metric("adjusted", True),
        },
        first=("worst_group", "mean_group"),
    ),
    "attack": Evaluation(
        {key: Metric(key, True) for key in ("clean", "1/255", "2/255", "4/255", "8/255")}, first=("1/255", "4/255")
    ),
    "hard": Evaluation(  # images that T_early gets wrong, and right
        {
            "hard_accuracy": Metric("hard accuracy", True),
            "easy_accuracy": Metric("easy accuracy", True),
            "balanced_accuracy": Metric("balanced accuracy", True),
        },
        first=("hard_accuracy", "balanced_accuracy"),
    ),
    SCENES: Evaluation({"agreement": Metric("agreement with the teacher")}, first=("agreement",)),
    MECHANISM: Evaluation(
        {
            "cos_final": Metric("cosine to T_final"),
            "cos_early": Metric("cosine to T_early"),
            "closer_final": Metric("closer to T_final"),
            "closer_to_final": Metric("closer to T_final"),
            "signed_cosine": Metric("signed cosine"),
            "signed_above": Metric("above −0.1"),
            "projection": Metric("on shortcut directions"),
            "robust_projection": Metric("on robust directions"),
            "projection_change": Metric("change against kd", format="+.3f"),
            "projection_final": Metric("T_final on shortcut directions"),
            "projection_early": Metric("T_early on shortcut directions"),
            "hinge_share": Metric("share above the hinge"),
            "hinge_mean": Metric("mean above the hinge"),
            "infonce_binary": Metric("InfoNCE, binary"),
            "infonce_full": Metric("InfoNCE, full"),
            "infonce_ceiling": Metric("its ceiling"),
            "head_share": Metric("head’s share of shortcut directions"),
            "shift_largest": Metric("largest logit shift"),
            "shift_bound": Metric("its bound"),
        },
        first=("cos_final", "cos_early", "projection"),
    ),
}
ORDER = list(EVALUATIONS)
LABELS = {key: metric.label for each in (ANY, *EVALUATIONS.values()) for key, metric in each.metrics.items()}
FEW = 3  # numbers of a score file that the first table shows when it knows none of them
VIEWS = ("aligned", "raw", "projector")  # of the mechanism; the first there is stands in the first table
RANDOM = {  # measure of the mechanism → what a random direction would have
    "projection": "projection_random",
    "projection_final": "projection_random",
    "projection_early": "projection_random",
    "robust_projection": "robust_random",
    "head_share": "head_random",
}
PROJECTIONS = ("projection", "robust_projection")  # of the student, those that are drawn
BASELINES = {*RANDOM.values(), "random"}


def parts(column: str) -> tuple[str, str]:
    """("conflict", "accuracy"): the set, or the mechanism's view, and the score."""
    group, _, score = column.rpartition(" ")
    return group or "training", score


def _evaluation(group: str) -> str:
    """ "mechanism" of "mechanism raw", "corruptions" of "corruptions@15%"."""
    return group.split(" ")[0].split("@")[0]


def metric(column: str) -> Metric:
    """What is known of a column; of a score that nobody has described, its name."""
    group, score = parts(column)
    name = _evaluation(group)
    known = EVALUATIONS.get(name, ANY).metrics
    if score not in known and name != MECHANISM:
        known = ANY.metrics
    return known.get(score, Metric(words(score)))


def better(column: str) -> int:
    """1 where more is better, −1 where less is, 0 where neither can be said."""
    higher = metric(column).higher_is_better
    return 0 if higher is None else 1 if higher else -1


def arrow(column: str) -> str:
    return {1: "↑", -1: "↓", 0: ""}[better(column)]


def words(score: str) -> str:
    """A score's name for a person."""
    return LABELS.get(score, score.replace("_", " "))


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


def _place(column: str) -> tuple[float, int, str, bool]:
    group, score = parts(column)
    name, view = _evaluation(group), group.partition(" ")[2]
    place = ORDER.index(name) if name in ORDER else 0.5  # the data's own sets follow the training
    return place, VIEWS.index(view) if view in VIEWS else len(VIEWS), group, score != "miou"


def view_of(names: Iterable[str]) -> str | None:
    """The view that the first table shows: one ruler for all methods."""
    views = {parts(name)[0].partition(" ")[2] for name in names if name.startswith(f"{MECHANISM} ")} - {""}
    return next((view for view in VIEWS if view in views), min(views, default=None))


def shown(names: Sequence[str]) -> list[str]:
    """The columns of the first table: a few of every set; all others are further down the page."""
    view = view_of(names)
    sets: dict[str, list[str]] = {}
    for name in names:
        sets.setdefault(parts(name)[0], []).append(name)
    result: list[str] = []
    for group, columns in sets.items():
        name = _evaluation(group)
        usual = [column for column in columns if parts(column)[1] in EVALUATIONS.get(name, ANY).first]
        if name != MECHANISM:
            result += usual or columns[:FEW]
        elif group == f"{MECHANISM} {view}":
            result += usual
    return result


def chosen(wanted: str, names: Sequence[str], flag: str = "--columns") -> list[str]:
    """--columns "last,conflict accuracy,mce": whole names, or their ends where only one column ends so."""
    result: dict[str, None] = {}
    for word in (word for part in wanted.split(",") if (word := " ".join(part.split()))):
        matches = [name for name in names if name == word] or [name for name in names if name.endswith(f" {word}")]
        if not matches:
            ends = near(word, dict.fromkeys(parts(name)[1] for name in names))
            hint = near(word, names)
            hint = ends if ends.startswith("; did") and not hint.startswith("; did") else hint
            raise UserError(f"{flag}: no column {word!r} here{hint}")
        if len(matches) > 1:
            raise UserError(f"{flag}: {word!r} may be {' or '.join(repr(name) for name in matches)}; write it out")
        result[matches[0]] = None
    if not result:
        raise UserError(f"{flag} names no column; known: {', '.join(names)}")
    return list(result)

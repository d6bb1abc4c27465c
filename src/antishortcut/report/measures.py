"""What the paper's measures are among our scores, and each printed number once, with all its places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from antishortcut.experiments.printed import Printed, of_run
from antishortcut.report.stats import sign_test, summary

VIEWS = ("raw", "aligned")  # features as they are where widths are equal, as the paper; else through one linear map


@dataclass(frozen=True)
class Measure:
    """A measure of the paper's as a score of ours."""

    columns: tuple[str, ...]  # the first that there is
    factor: float = 100.0  # from our unit to print's
    digits: int = 2
    by_sign: bool = False  # numbers do not compare, only the sign of the difference to the baseline
    to: str = ""  # the row that the number is a difference to
    change: bool = False  # the score is a change against the baseline by itself
    over: Callable[[Sequence[float]], float | None] | None = None  # what the seeds come to, if not their mean


@dataclass(frozen=True)
class Number:
    """A printed number, once; `places` are all that print it."""

    mean: float
    std: float | None
    places: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]  # contradictions: place, what is wrong

    @property
    def digits(self) -> int:
        return len(repr(self.mean).partition(".")[2]) if self.mean % 1 else 0

    def same(self, other: Number) -> bool:
        """Equal, or one is the other rounded (to two digits or more: 80.5 is 80.50); with two stds they are two."""
        if self.std is not None and other.std is not None and self.std != other.std:
            return False
        rough, fine = sorted((self, other), key=lambda number: number.digits)
        rounded = rough.digits < fine.digits and round(fine.mean, max(rough.digits, 2)) == rough.mean
        return self.mean == other.mean or rounded

    def joined(self, other: Number) -> Number:
        """With the most digits that it is printed with."""
        return Number(
            mean=max(self, other, key=lambda number: number.digits).mean,
            std=other.std if self.std is None else self.std,
            places=tuple(dict.fromkeys((*self.places, *other.places))),
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
        )


def _inside(score: str, factor: float = 1.0, digits: int = 2, change: bool = False) -> Measure:
    return Measure(tuple(f"mechanism {view} {score}" for view in VIEWS), factor, digits, change=change)


def _wins(values: Sequence[float]) -> float:
    return float(sum(value > 0 for value in values))


SECONDS = "seconds"  # of a whole run, from its result.json
ACCURACY = ("last", "test accuracy")
MEASURES = {
    "accuracy": Measure(ACCURACY),
    "std of accuracy": Measure(ACCURACY, over=lambda values: summary(values).std),
    "mIoU": Measure(("val miou",)),
    "pixel accuracy": Measure(("val accuracy",)),
    "mCE": Measure(("corruptions mce",), digits=1, by_sign=True),
    "ΔCE texture": Measure(("corruptions texture",), digits=1, by_sign=True, to="kd"),
    "ΔCE weather": Measure(("corruptions weather",), digits=1, by_sign=True, to="kd"),
    "ΔCE noise": Measure(("corruptions noise",), digits=1, by_sign=True, to="kd"),
    "stylised": Measure(("stylized accuracy",), digits=1),
    "accuracy beside stylised": Measure(("stylized clean_accuracy",), digits=1),
    "stylised against clean": Measure(("stylized gap",), factor=-100.0),
    "ImageNet-R": Measure(("imagenet-r accuracy",)),
    "ImageNet-A": Measure(("imagenet-a accuracy",)),
    "alignment with T_final": _inside("cos_final"),
    "alignment with T_early": _inside("cos_early"),
    "% of samples closer to T_final": _inside("closer_final", 100.0, 1),
    "signed cosine": _inside("signed_cosine", digits=3),
    "% of samples above the threshold": _inside("signed_above", 100.0, 1),
    "projection on the shortcut": _inside("projection"),
    "shortcut magnitude, % against KD": _inside("projection_change", 100.0, 1, change=True),
    "projection on the robust subspace": _inside("robust_projection"),
    "InfoNCE, binary, nats": _inside("infonce_binary", digits=3),
    "InfoNCE, full, nats": _inside("infonce_full"),
    "accuracy against crd+kd, lowest": Measure(ACCURACY, to="crd+kd", over=min),
    "accuracy against crd+kd, highest": Measure(ACCURACY, to="crd+kd", over=max),
    "seeds above crd+kd": Measure(ACCURACY, 1.0, 0, to="crd+kd", over=_wins),
    "p of the one-sided sign test": Measure(
        ACCURACY, 1.0, 3, to="crd+kd", over=lambda values: sign_test(values, [0.0] * len(values))
    ),
    "ImageNet-R, seeds above KD": Measure(("imagenet-r accuracy",), 1.0, 0, to="kd", over=_wins),
    "overhead in all, %, from": Measure((SECONDS,), digits=1, to="kd"),
    "overhead in all, %, to": Measure((SECONDS,), digits=1, to="kd"),
}
ALSO = {  # printed under another name than what it is
    "shape": "stylised",
    "accuracy, called random in-batch negatives": "accuracy",
    "accuracy with the true early checkpoint": "accuracy",
}
ROWS = {"ce": ("ce", "student")}  # the tables' "student" was trained without a teacher
NAMED = {"student": "ce"}  # the same, where a number is a difference to it
SAID = {  # settings of a row, and what is said of numbers that stand in a table themselves
    "K", "M", "B", "ε", "T_early epoch", "T_early, % of training", "warm-up epochs", "warm-up epochs, none",
    "warm-up epochs beyond which it saturates", "M without a queue", "ε, too small", "ε, too large",
    "K that reaches the noise floor", "B of the best accuracy and mCE", "the only weaker epoch",
    "B to which accuracy and mCE are insensitive, from", "B to which accuracy and mCE are insensitive, to",
    "stable T_early, % of training, from", "stable T_early, % of training, to", "epochs of rewinding",
    "rate of rewinding", "ceiling of binary InfoNCE, nats", "checkpoints", "embedding",
}  # fmt: skip
STEPS = {"overhead of the T_early pass, %", "ms of the eigenspace, below", "ms of the contrast"}  # of single steps
SEED = re.compile(r", seed [0-9]+$")


def measure_of(key: str) -> Measure | None:
    """Among our scores; None for what a run has no score of: settings, costs, single seeds."""
    base, _, row = key.partition(" against ")
    if key in MEASURES or not row or "," in row:
        return MEASURES.get(key)
    return replace(MEASURES[base], to=NAMED.get(row, row)) if base in MEASURES else None


def why_not(key: str) -> str | None:
    """Why a measure without a score is not compared; None for what is none."""
    if key in SAID:
        return None
    if key in STEPS:
        return "asd bench measures steps"
    return "of single seeds, where theirs are not ours" if SEED.search(key) else "no score of ours"


def numbers_of(pair: str, name: str) -> dict[str, list[Number]]:
    """What is printed of a row of a pair, by measure: different values apart, from the first place that has one."""
    printed = [number for row in ROWS.get(name, (name,)) for number in of_run(pair, row)]
    return by_measure((ALSO.get(number.measure, number.measure), number) for number in printed)


def by_measure(printed: Iterable[tuple[str, Printed]]) -> dict[str, list[Number]]:
    """The same value in several places is one number."""
    numbers: dict[str, list[Number]] = {}
    for key, one in printed:
        new = Number(one.mean, one.std, (one.place,), ((one.place, one.note),) if one.note else ())
        known = numbers.setdefault(key, [])
        at = next((at for at, other in enumerate(known) if other.same(new)), None)
        if at is None:
            known.append(new)
        else:
            known[at] = known[at].joined(new)
    return numbers

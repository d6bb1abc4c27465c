"""The methods, by name. Each is X(sizes, *, hyper-parameters with defaults); see `antishortcut.types.Method`."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from antishortcut.errors import UserError, short_repr, suggest
from antishortcut.methods.ab import AB
from antishortcut.methods.afdcd import AfDCD
from antishortcut.methods.asd import ASD
from antishortcut.methods.at import AT
from antishortcut.methods.byot import BYOT
from antishortcut.methods.cc import CC
from antishortcut.methods.ce import CE
from antishortcut.methods.ckptkd import CkptKD
from antishortcut.methods.contrast import Contrast
from antishortcut.methods.crd import CRD
from antishortcut.methods.dfr import DFR
from antishortcut.methods.dist import DIST
from antishortcut.methods.dkd import DKD
from antishortcut.methods.feature_distillation import FeatureDistillation
from antishortcut.methods.fitnets import FitNets
from antishortcut.methods.fsp import FSP
from antishortcut.methods.ft import FT
from antishortcut.methods.groupdro import GroupDRO
from antishortcut.methods.kd import KD
from antishortcut.methods.kdsvd import KDSVD
from antishortcut.methods.mlld import MLLD
from antishortcut.methods.nst import NST
from antishortcut.methods.ofd import OFD
from antishortcut.methods.pkt import PKT
from antishortcut.methods.residual import ResidualKD
from antishortcut.methods.reviewkd import ReviewKD
from antishortcut.methods.reweight import Reweight
from antishortcut.methods.rkd import RKD
from antishortcut.methods.simkd import SimKD
from antishortcut.methods.snapshot import Snapshot
from antishortcut.methods.sp import SP
from antishortcut.methods.transplant import Transplant
from antishortcut.methods.ufd import UFD
from antishortcut.methods.vid import VID
from antishortcut.types import (
    Batch,
    DataSplits,
    Features,
    Method,
    Prepares,
    Projects,
    ReusesClassifier,
    Shape,
    Sizes,
    StrongView,
    TrainingView,
    lacks_labels,
)

METHODS: dict[str, Callable[..., nn.Module]] = {
    "ce": CE,
    "kd": KD,
    "kd-repdistiller": partial(KD, weight=0.9, task_weight=0.1),
    "kd+ls": partial(KD, standardise=True, weight=9.0, temperature=2.0, task_weight=0.1),
    "dkd": DKD,
    "dkd+ls": partial(DKD, standardise=True, alpha=9.0, beta=72.0, temperature=2.0),
    "dist": DIST,
    "mlld": MLLD,
    "mlld+ls": partial(MLLD, standardise=True, weight=9.0, temperature=2.0),
    "rkd": RKD,
    "pkt": PKT,
    "sp": SP,
    "cc": CC,
    "byot": BYOT,
    "fitnets": FitNets,
    "fitnets+kd": partial(FitNets, kd=1.0),
    "at": AT,
    "at+kd": partial(AT, kd=1.0),
    "vid": VID,
    "nst": NST,
    "kdsvd": KDSVD,
    "ab": AB,
    "fsp": FSP,
    "ft": FT,
    "ofd": OFD,
    "reviewkd": ReviewKD,
    "afdcd": AfDCD,
    "ufd": UFD,
    "crd": CRD,
    "crd+kd": partial(CRD, kd=1.0),
    "crd-queue": partial(CRD, memory="queue", negatives=4096),
    "simkd": SimKD,
    "ckptkd": CkptKD,
    "snapshot": Snapshot,
    "jtt+kd": partial(Reweight, scheme="jtt"),
    "lff+kd": partial(Reweight, scheme="lff"),
    "groupdro+kd": GroupDRO,
    "dfr+kd": DFR,
    "transplant": Transplant,
    "features": FeatureDistillation,
    "asd": ASD,
    "contrast": Contrast,
    "contrast+tc": partial(Contrast, tc=0.8),
    "contrast+hint": partial(Contrast, strength=0.25, hint=30.0),
    "contrast+ls": partial(Contrast, standardise=True, weight=9.0, temperature=2.0, task_weight=0.1),
    "residual": ResidualKD,
}


LARGEST_INT, LARGEST_FLOAT = 10**9, 1e6
LARGEST = {"width": 2**14, "directions": 2**14, "pool": 2**14, "patch": 2**8}  # sizes of tensors and windows


def build_method(name: str, sizes: Sizes, options: Mapping[str, Any]) -> nn.Module:
    """Build a method. Settings or networks it cannot work with are a UserError."""
    options = method_options(name, options)
    try:
        return METHODS[name](sizes, **options)
    except ValueError as error:
        raise UserError(f"method {name!r}: {error}") from None


def method_roles(name: str, options: Mapping[str, Any], *, weak: bool = False) -> tuple[str, ...]:
    """The teacher states that a method with these settings needs, found by building it for tiny networks.

    weak: a weak reference takes T_early's place, so a method that only compares embeddings does without.
    """
    shape = Shape(8, ((4, 4, 4),) * 16)  # more stages than a setting may point at
    teachers = defaultdict(lambda: shape, early=replace(shape, weak=weak))
    sizes = Sizes(4, 16, shape, teachers, labels=torch.arange(16) % 4, groups=torch.arange(16) % 8)
    return cast(Method, build_method(name, sizes, options)).roles


def method_options(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a method: `settings`, and defaults for the rest. A wrong name or type is a UserError."""
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}{suggest(name, METHODS)}")
    options = _defaults(METHODS[name])
    for key, value in settings.items():
        if key not in options:
            raise UserError(f"method {name!r} has no setting {key!r}{suggest(key, options)}")
        default = options[key]
        kind = type(default)
        if kind is float and type(value) is int and abs(value) <= LARGEST_INT:
            value = float(value)
        if type(value) is not kind:
            raise UserError(
                f"method {name!r}: {key} is {value!r}; it must be of type {kind.__name__}, like {default!r}"
            )
        largest = LARGEST.get(key, LARGEST_INT) if kind is int else LARGEST_FLOAT
        if kind in (int, float) and not abs(value) <= largest:  # NaN too
            raise UserError(f"method {name!r}: {key} is {short_repr(value)}; it must not be beyond {largest:,g}")
        options[key] = value
    return options


def _defaults(method: Callable[..., nn.Module]) -> dict[str, Any]:
    """Settings with their defaults; a method that passes settings on to a loss names it in `settings_from`."""
    loss = getattr(method, "settings_from", None)
    inner = {} if loss is None else _defaults(loss)
    parameters = inspect.signature(method).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    return {key: value for key, value in (inner | own).items() if key not in ("examples", "sync")}


# --- Which methods can learn from images without labels; what cannot work is one line before training ---

ROWS, CLASSES = 4, 5  # of the batch that a method is tried on
PAST_PHASES = 1e6  # epochs: past every warm-up and initial phase


def check_unlabelled(name: str, options: Mapping[str, Any], data: DataSplits, sizes: Sizes, mixes: bool) -> None:
    """Refuse a method that would leave a part of the student untrained, or that needs classes where there are none."""
    if not lacks_labels(data.train):
        return
    if mixes:
        raise UserError("optim.mixup and optim.cutmix mix labels, and some images have none; set them to 0")
    method = build_method(name, replace(sizes, classes=sizes.classes or CLASSES), options)
    if not cast(Method, method).roles:
        raise UserError(f"method {name!r} learns from labels alone, so images without labels add nothing to it")
    if not lacks_labels(data.split(data.eval_split)):  # labels train the classifier
        return
    if not data.classes:
        if _reads_logits(method, sizes) or not isinstance(method, Projects):
            none = f"{data.name} has no classes (data.options.classes is 0)"
            raise UserError(f"{none}, so a student learns embeddings, which {name!r} does not teach; use features")
    elif not isinstance(method, ReusesClassifier) and not _reads_logits(method, sizes):
        advice = "use kd, contrast or asd, or leave the classifier out: --method features --set data.options.classes=0"
        raise UserError(f"without labels nothing would train the student's classifier: {name!r} does not; {advice}")


def _reads_logits(method: nn.Module, sizes: Sizes) -> bool:
    """Whether a loss term has a gradient for the student's logits, found on random features."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.default_generator.manual_seed(0)
        student = _features(sizes.student, sizes.classes, grad=True)
        teachers = {role: _features(shape, sizes.classes) for role, shape in sizes.teachers.items()}
        if isinstance(method, Prepares):
            method.prepare([teachers])
        student_view = method.view(student, teachers) if isinstance(method, TrainingView) else student
        index = torch.arange(ROWS) % sizes.examples
        strong = torch.arange(ROWS) >= ROWS // 2 if isinstance(method, StrongView) else None
        batch = Batch(torch.rand(ROWS, 3, 8, 8), torch.zeros(ROWS, dtype=torch.int64), index, strong=strong)
        terms = cast(Method, method.eval()).terms(student_view, teachers, batch, PAST_PHASES)
        total = sum((value for value in terms.values() if value.requires_grad), 0.0 * student.logits.sum())
        (gradient,) = torch.autograd.grad(total, student.logits)
        return bool(gradient.any())


def _features(shape: Shape, classes: int, grad: bool = False) -> Features:
    """Random features of these sizes."""

    def drawn(*size: int) -> torch.Tensor:
        return torch.rand(ROWS, *size).requires_grad_(grad)

    stages = tuple(drawn(*stage) for stage in shape.stages)
    last = drawn(shape.embedding, *shape.side) if shape.side != (1, 1) else None
    return Features(drawn(classes or CLASSES), drawn(shape.embedding), stages, last=last, preact=stages)

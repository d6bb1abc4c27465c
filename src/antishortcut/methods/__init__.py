"""The methods, by name. Each is X(sizes, *, hyper-parameters with defaults); see `antishortcut.types.Method`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from torch import arange, nn

from antishortcut.errors import UserError, short_repr, suggest
from antishortcut.methods.afdcd import AfDCD
from antishortcut.methods.asd import ASD
from antishortcut.methods.at import AT
from antishortcut.methods.byot import BYOT
from antishortcut.methods.ce import CE
from antishortcut.methods.ckptkd import CkptKD
from antishortcut.methods.contrast import Contrast
from antishortcut.methods.crd import CRD
from antishortcut.methods.dkd import DKD
from antishortcut.methods.fitnets import FitNets
from antishortcut.methods.kd import KD
from antishortcut.methods.pkt import PKT
from antishortcut.methods.residual import Residual
from antishortcut.methods.reviewkd import ReviewKD
from antishortcut.methods.reweight import Reweight
from antishortcut.methods.rkd import RKD
from antishortcut.methods.snapshot import Snapshot
from antishortcut.methods.ufd import UFD
from antishortcut.types import Method, Shape, Sizes

METHODS: dict[str, Callable[..., nn.Module]] = {
    "ce": CE,
    "kd": KD,
    "kd-repdistiller": partial(KD, weight=0.9, task_weight=0.1),
    "dkd": DKD,
    "rkd": RKD,
    "pkt": PKT,
    "byot": BYOT,
    "fitnets": FitNets,
    "fitnets+kd": partial(FitNets, kd=1.0),
    "at": AT,
    "at+kd": partial(AT, kd=1.0),
    "reviewkd": ReviewKD,
    "afdcd": AfDCD,
    "ufd": UFD,
    "crd": CRD,
    "crd+kd": partial(CRD, kd=1.0),
    "crd-queue": partial(CRD, memory="queue", negatives=4096),
    "ckptkd": CkptKD,
    "snapshot": Snapshot,
    "jtt+kd": partial(Reweight, scheme="jtt"),
    "lff+kd": partial(Reweight, scheme="lff"),
    "asd": ASD,
    "contrast": Contrast,
    "contrast+tc": partial(Contrast, tc=0.8),
    "residual": Residual,
}


class _AnyShape(dict[str, Shape]):
    def __missing__(self, role: str) -> Shape:
        return Shape(8, ((4, 4, 4),) * 16)  # more stages than a setting may point at


INTEGERS, NUMBERS = 10**9, 1e6  # larger ones are of no use, and torch has no room for them
SIZES = {"width": 2**14, "directions": 2**14, "pool": 2**14, "patch": 2**8}  # of tensors, and of windows over maps


def build_method(name: str, sizes: Sizes, options: Mapping[str, Any]) -> nn.Module:
    """Build a method; settings or networks it cannot work with are told to the person."""
    options = method_options(name, options)  # which may come out of a file
    try:
        return METHODS[name](sizes, **options)
    except ValueError as error:
        raise UserError(f"method {name!r}: {error}{_without_maps(name, sizes)}") from None


def _without_maps(name: str, sizes: Sizes) -> str:
    """What to do about a network that has no feature maps for a method that needs them."""
    method = METHODS[name]
    if "stages" not in getattr(method.func if isinstance(method, partial) else method, "taps", ()):
        return ""
    networks = [("student", sizes.student), *(("teacher", sizes.teachers[role]) for role in sizes.teachers)]
    which = next((who for who, shape in networks if not shape.stages), None)
    if which is None:
        return ""
    return f"; name modules that give maps ({which}.stages = …), or take a method that needs none, like asd"


def method_roles(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Which teacher states a method with these settings wants, found by building a tiny one."""
    shapes = _AnyShape()
    sizes = Sizes(classes=4, examples=16, student=shapes["student"], teachers=shapes, labels=arange(16) % 4)
    return cast(Method, build_method(name, sizes, options)).roles


def _defaults(method: Callable[..., nn.Module]) -> dict[str, Any]:
    """Settings with their defaults; a method may take those of a loss it wraps, which it names in `settings_from`."""
    loss = getattr(method, "settings_from", None)
    inner = {} if loss is None else _defaults(loss)
    parameters = inspect.signature(method).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    return {key: value for key, value in (inner | own).items() if key not in ("examples", "sync")}


def method_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a method: the given ones, and the defaults of the rest. A wrong name or type is an error."""
    if name not in METHODS:
        raise UserError(f"unknown method {name!r}{suggest(name, METHODS)}")
    defaults = _defaults(METHODS[name])
    for key, value in given.items():
        if key not in defaults:
            raise UserError(f"method {name!r} has no setting {key!r}{suggest(key, defaults)}")
        kind = type(defaults[key])
        if kind is float and type(value) is int and abs(value) <= INTEGERS:
            value = float(value)
        if type(value) is not kind:
            raise UserError(
                f"method {name!r}: {key} is {value!r}; it must be of type {kind.__name__}, like {defaults[key]!r}"
            )
        most = SIZES.get(key, INTEGERS) if kind is int else NUMBERS
        if kind in (int, float) and not abs(value) <= most:  # nor what is no number
            raise UserError(f"method {name!r}: {key} is {short_repr(value)}; it must not be beyond {most:,g}")
        defaults[key] = value
    return defaults

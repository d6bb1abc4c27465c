"""Networks that are not ours: `timm:NAME`, `torchvision:NAME`, and your own as `import:package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from antishortcut.errors import UserError, near
from antishortcut.models.network import CIFAR_MEAN, CIFAR_STD, Colour

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Foreign:
    module: nn.Module
    mean: Colour
    std: Colour
    size: int | None = None  # side of the images, when the network takes only one


def from_timm(name: str, classes: int, pretrained: bool) -> Foreign:
    import timm  # here and below: seconds to import, and most runs never need it

    if ":" not in name and not timm.is_model(name.partition(".")[0]):  # hf-hub:owner/name is timm's own business
        raise UserError(f"timm has no model {name!r}{hint(name, timm.list_models(), 'timm.list_models()')}")
    return make_timm(name, pretrained, num_classes=classes)


def make_timm(name: str, pretrained: bool, **options: Any) -> Foreign:
    """timm.create_model, with what the weights want to see, and readable complaints."""
    import timm

    try:
        module: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    except OSError as error:  # also what the download raises
        raise UserError(f"cannot fetch the weights of timm:{name}: {error}") from error
    except RuntimeError as error:  # an unknown weight tag, or a network without weights
        raise UserError(f"timm cannot make {name!r}: {error}") from error
    settings = getattr(module, "pretrained_cfg", {})
    size = settings["input_size"][-1] if settings.get("fixed_input_size") else None
    return Foreign(module, settings.get("mean", IMAGENET_MEAN), settings.get("std", IMAGENET_STD), size)


def from_torchvision(name: str, classes: int, pretrained: bool) -> Foreign:
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise UserError(
            f"torchvision has no classifier {name!r}{hint(name, known, 'torchvision.models.list_models()')}"
        )
    # both of them would warn about their slow initialisation; the others do not know the option
    options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    if pretrained:
        try:
            weights = models.get_model_weights(name).DEFAULT.get_state_dict(check_hash=True)
        except OSError as error:
            raise UserError(f"cannot fetch the weights of torchvision:{name}: {error}") from error
        own = module.state_dict()
        # the classifier keeps its fresh weights when the number of classes differs
        fitting = {key: w for key, w in weights.items() if key in own and own[key].shape == w.shape}
        module.load_state_dict(fitting, strict=False)
    size = getattr(module, "image_size", None)
    return Foreign(module, IMAGENET_MEAN, IMAGENET_STD, size if isinstance(size, int) else None)


def from_import(place: str, classes: int, pretrained: bool) -> Foreign:
    """`package.module:function`, called with num_classes; the current folder is searched too."""
    if pretrained:
        raise UserError(f"import:{place} loads its own weights; leave pretrained off")
    where, _, name = place.partition(":")
    if not where or not name:
        raise UserError(f"import:{place} names no function; write import:package.module:function")
    sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import {where!r} for import:{place}: {error}") from error
    finally:
        sys.path.pop()
    factory: Callable[..., object] | None = getattr(found, name, None)
    if not callable(factory):
        public = [word for word in vars(found) if not word.startswith("_")]
        raise UserError(f"{where!r} has no function {name!r}{near(name, public)}")
    try:
        inspect.signature(factory).bind(num_classes=classes)
    except TypeError as error:
        raise UserError(f"import:{place} must be callable with num_classes alone: {error}") from error
    module = factory(num_classes=classes)
    if not isinstance(module, nn.Module):
        raise UserError(f"import:{place} returned {type(module).__name__}; wanted a torch.nn.Module")
    return Foreign(module, CIFAR_MEAN, CIFAR_STD)


def hint(name: str, known: Iterable[str], listing: str) -> str:
    """Near names, or where to look when none is near: the whole list would fill the screen."""
    words = near(name, known)
    return words if words.startswith("; did") else f"; see {listing}"


SOURCES = {"timm": from_timm, "torchvision": from_torchvision, "import": from_import}

"""Networks of libraries and users: `timm:NAME`, `torchvision:NAME`, and your own as `package.module:factory`."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from torch import nn

from antishortcut.errors import UserError, suggest
from antishortcut.models.downloads import from_hub
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.models.user_models import KIND, from_own, live_copy, own_code
from antishortcut.models.wrapper import Colour

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCRATCH = "--no-pretrained, or pretrained = false in the recipe"


class ExternalModel(NamedTuple):
    """A network with the normalisation and input size it expects."""

    module: nn.Module
    mean: Colour
    std: Colour
    size: int | None = None  # side of the images, if fixed


def from_timm(name: str, classes: int, pretrained: bool, size: int | None = None) -> ExternalModel:
    import timm  # here and below: takes seconds to import, and most runs never need it

    if ":" not in name and not timm.is_model(name.partition(".")[0]):  # hf-hub:owner/name is left to timm
        raise UserError(f"timm has no model {name!r}{suggest(name, timm.list_models(), '; see timm.list_models()')}")
    if size is not None:
        try:  # transformers are built for one size
            return make_timm(name, pretrained, num_classes=classes, img_size=size)
        except TypeError:  # others take any
            pass
    return make_timm(name, pretrained, num_classes=classes)


def make_timm(name: str, pretrained: bool, **options: Any) -> ExternalModel:
    """timm.create_model, with the normalisation and size of its weights."""
    import timm

    remote = (pretrained or name.startswith("hf-hub:")) and not name.startswith("local-dir:")
    downloads = from_hub(f"the weights of timm:{name}", f"start without: {SCRATCH}") if remote else nullcontext()
    try:
        with downloads:
            module: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    except (RuntimeError, AssertionError) as error:  # an unknown weight tag, a network without weights, an odd size
        raise UserError(f"timm cannot make {name!r}: {error}") from error
    settings = getattr(module, "pretrained_cfg", {})
    size = settings["input_size"][-1] if settings.get("fixed_input_size") else None
    return ExternalModel(module, settings.get("mean", IMAGENET_MEAN), settings.get("std", IMAGENET_STD), size)


def from_torchvision(name: str, classes: int, pretrained: bool, size: int | None = None) -> ExternalModel:
    from torchvision import models

    dense = models.list_models(module=models.segmentation)
    known = [*models.list_models(module=models), *dense]
    if name not in known:
        hint = suggest(name, known, "; see torchvision.models.list_models()")
        raise UserError(f"torchvision has no classifier or segmentation network {name!r}{hint}")
    options: dict[str, Any] = {}
    if name in dense:  # no download of a backbone; with the auxiliary head, where there is one
        options = {"weights_backbone": None} | ({} if name.startswith("lraspp") else {"aux_loss": True})
    elif name in ("googlenet", "inception_v3"):  # without it both warn about their slow initialisation
        options = {"init_weights": True}
    elif size is not None and name.startswith("vit_"):
        options = {"image_size": size}
    if name in dense and not classes:
        raise UserError(f"torchvision:{name} segments images, so it needs classes; use a network that embeds images")
    module: nn.Module = models.get_model(name, weights=None, num_classes=classes or 1, **options)
    if pretrained:
        try:
            weights = models.get_model_weights(name).DEFAULT.get_state_dict(check_hash=True)
        except OSError as error:
            text = f"cannot download the weights of torchvision:{name}: {error}"
            raise UserError(f"{text}; start without: {SCRATCH}") from error
        own = module.state_dict()  # the classifier keeps its fresh weights when the number of classes differs
        fitting = {key: w for key, w in weights.items() if key in own and own[key].shape == w.shape}
        module.load_state_dict(fitting, strict=False)
    for part in (getattr(module, path, None) for path in ("aux1", "aux2", "AuxLogits")):  # GoogLeNet's and Inception's
        if isinstance(part, nn.Module):  # unused, and they read maps that small images do not have
            part.requires_grad_(False).forward = lambda x: None
    if name.startswith("deeplabv3"):
        pooling = module.get_submodule("classifier.0.convs.4")
        assert isinstance(pooling, nn.Sequential)
        pooling[2] = SingleSampleNorm2d.like(pooling[2])
    if not classes:
        _drop_classifier(module)
    own_size = getattr(module, "image_size", None)
    return ExternalModel(module, IMAGENET_MEAN, IMAGENET_STD, own_size if isinstance(own_size, int) else None)


def _drop_classifier(module: nn.Module) -> None:
    """Of a torchvision classifier, which always has one: its last layer, linear or a convolution, does nothing."""
    layers = [path for path, part in module.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    heads = [path for path in layers if not path.lower().startswith("aux")]
    parent, _, name = heads[-1].rpartition(".")
    setattr(module.get_submodule(parent), name, nn.Identity())


def from_import(place: str, classes: int, pretrained: bool, size: int | None = None) -> ExternalModel:
    if pretrained:
        raise UserError(f"{place} loads its own weights; leave pretrained off, or name a file: weights = FILE")
    return ExternalModel(from_own(place, classes), IMAGENET_MEAN, IMAGENET_STD)


def from_live(place: str, classes: int, pretrained: bool, size: int | None = None) -> ExternalModel:
    """A Python object, with as many outputs as it has. timm's know their normalisation, others get ImageNet's."""
    if pretrained:
        raise UserError(f"{place} is a Python object and has its weights; leave pretrained off")
    module = live_copy(f"{KIND}:{place}")
    settings = getattr(module, "pretrained_cfg", None) or {}  # timm's
    mean, std = settings.get("mean", IMAGENET_MEAN), settings.get("std", IMAGENET_STD)
    return ExternalModel(module, mean, std, _input_size(module))


def _input_size(module: nn.Module) -> int | None:
    """The only side that a transformer of torchvision, transformers or timm takes; None where any will do."""
    patches = getattr(module, "patch_embed", None)  # timm's
    fixed = getattr(patches, "img_size", None) if getattr(patches, "strict_img_size", False) else None
    sizes = (getattr(module, "image_size", None), getattr(getattr(module, "config", None), "image_size", None), fixed)
    sides = [size[0] if isinstance(size, tuple | list) else size for size in sizes]
    return next((side for side in sides if isinstance(side, int)), None)


def library_hint(name: str) -> str:
    """A hint for a name that timm or torchvision know, written without its library."""
    import timm
    from torchvision import models

    known = {"timm": timm.is_model(name.partition(".")[0]), "torchvision": name in models.list_models(module=models)}
    options = [f"'{source}:{name}'" for source, exists in known.items() if exists]
    return f"; did you mean {' or '.join(options)}?" if options else ""


def published(name: str) -> bool:
    """Whether there are published weights for the network."""
    source, _, rest = name.partition(":")
    if source == "timm":
        from timm.models import is_model_pretrained

        return ":" in rest or is_model_pretrained(rest)  # hf-hub:owner/name
    if source == "torchvision":
        from torchvision import models

        return rest in models.list_models(module=models)
    return False


Source = Callable[[str, int, bool, int | None], ExternalModel]
SOURCES: dict[str, Source] = {
    "timm": from_timm,
    "torchvision": from_torchvision,
    "import": from_import,
    KIND: from_live,
}


def find_source(name: str) -> tuple[Source, str] | None:
    """The builder of a network and its name there; None for the networks of this package."""
    source, _, rest = name.partition(":")
    if not source or not rest:
        return None
    return (SOURCES[source], rest) if source in SOURCES else (from_import, name)


def is_own(name: str) -> bool:
    """Whether the network is your own code, package.module:factory."""
    source = find_source(name)
    return source is not None and source[0] is from_import


def is_object(name: str) -> bool:
    """Whether the network is a Python object, which has the outputs that it has."""
    return name.startswith(f"{KIND}:")


def published_classes(name: str) -> int:
    """The number of classes that a network's published weights know; 0 for those that only embed."""
    source, _, rest = name.partition(":")
    if source == "torchvision":
        from torchvision import models

        return len(models.get_model_weights(rest).DEFAULT.meta["categories"])
    if source == "timm" and ":" not in rest:  # of hf-hub:owner/name nothing is known before the download
        from timm.data.imagenet_info import infer_imagenet_subset
        from timm.models import get_pretrained_cfg

        config = get_pretrained_cfg(rest)  # CLIP's 512 "classes" are its embedding: no subset of ImageNet has as many
        if config is not None and infer_imagenet_subset({"num_classes": config.num_classes}) is not None:
            return int(config.num_classes)
    return 0


def code_of(*names: str) -> dict[str, str]:
    """Module → sha256 of its source, of those networks that are your own; the packages of others have versions."""
    sources = filter(None, map(find_source, names))
    own = [own_code(place) for builder, place in sources if builder is from_import]
    return {module: sha for code in own for module, sha in code.items()}

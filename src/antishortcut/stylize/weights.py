"""Weights of stylizers: the public reference ones, and our own in <runs>/stylizers/<hash>."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.files import sha256
from antishortcut.folder import read_json, replacing, write_json
from antishortcut.models import Network, build
from antishortcut.models.vgg import CONVS, VGG, WIDTHS
from antishortcut.models.weights import complain, load_weights, read, strip
from antishortcut.stylize.nets import (
    ReferenceEncoder,
    Stylizer,
    encoder_from,
    own_decoder,
    reference_decoder,
    reference_vgg,
    widths_of,
)

NAMES = tuple(CONVS)  # networks that can be encoders
ENCODER, DECODER, FACTS = "encoder.safetensors", "decoder.safetensors", "facts.json"
VERSION = 1  # of the folder and of the training; raise it when either changes


def reference(vgg: Path, decoder: Path, magnify: int = 1) -> Stylizer:
    """The stylizer of naoto0804/pytorch-AdaIN from its `vgg_normalised.pth` and `decoder.pth` (or safetensors)."""
    if magnify < 1:
        raise UserError(f"--magnify is how many times images are enlarged, at least 1, not {magnify}")
    states = {path: strip(read(path)) for path in (vgg, decoder)}  # before networks are made, which takes longer
    nets = {"vgg": (vgg, reference_vgg()), "decoder": (decoder, reference_decoder())}
    for path, net in nets.values():
        state = states[path]
        complain(path, net.state_dict(), state)
        net.load_state_dict(state)
    digests = {"encoder": sha256(vgg), "decoder": sha256(decoder)}
    facts = {"weights": "reference", "digests": digests, "magnify": magnify}
    encoder = ReferenceEncoder(nets["vgg"][1])
    return Stylizer(_frozen(encoder), _frozen(nets["decoder"][1]), facts, magnify)


def network_from(path: Path) -> Network:
    """A vgg8 or vgg13 from a file of weights; which one, and for how many classes, is read off the shapes."""
    state = strip(read(path))
    head = next((value for key, value in state.items() if key.endswith("head.weight")), None)
    if head is None or head.ndim != 2 or not any("stages." in key for key in state):
        raise UserError(f"{path} holds no VGG of ours; --encoder wants a vgg8 or vgg13, trained by asd teach")
    deeper = any(key.endswith("stages.0.1.0.weight") for key in state)  # a second convolution in the first stage
    network = build("vgg13" if deeper else "vgg8", len(head))
    load_weights(network, path)
    return network.eval()


def name_of(network: nn.Module) -> str:
    """vgg8 or vgg13, by its convolutions a stage."""
    body = getattr(network, "body", None)
    if not isinstance(body, VGG):
        raise UserError("the encoder must be a VGG of ours: vgg8 or vgg13")
    first = body.stages[0]
    assert isinstance(first, nn.Sequential)
    return {convs: name for name, convs in CONVS.items()}[len(first)]


def packed(module: nn.Module) -> bytes:
    """Parameters and buffers as the bytes of a safetensors file."""
    state: dict[str, Tensor] = {key: value.detach().cpu().contiguous() for key, value in module.state_dict().items()}
    data: bytes = save(state)
    return data


def keep(folder: Path, encoder: nn.Module, decoder: nn.Module, facts: Mapping[str, Any]) -> None:
    """Write a stylizer; facts.json comes last, and a folder that has it is whole."""
    digests: dict[str, str] = {}
    for name, file, module in (("encoder", ENCODER, encoder), ("decoder", DECODER, decoder)):
        data = packed(module)
        digests[name] = hashlib.sha256(data).hexdigest()
        with replacing(folder / file) as out:
            out.write(data)
    write_json(folder / FACTS, {"kind": "stylizer", "version": VERSION, "digests": digests} | dict(facts))


def load(folder: Path) -> Stylizer:
    """A stylizer of our own, as `keep` wrote it; a file that is not the one that was written is refused."""
    if not (folder / FACTS).exists():
        raise UserError(f"{folder} is no stylizer: it has no {FACTS}; asd stylize --train makes one")
    facts = read_json(folder / FACTS)
    if not isinstance(facts, dict) or facts.get("kind") != "stylizer" or facts.get("version") != VERSION:
        raise UserError(f"{folder / FACTS} is not of a stylizer of this version; train it again with --train")
    settings, digests = _said(folder / FACTS, facts)
    for name, file in (("encoder", ENCODER), ("decoder", DECODER)):
        if not (folder / file).is_file() or sha256(folder / file) != digests[name]:
            raise UserError(f"{folder / file} is missing or damaged; remove {folder} and train it again with --train")
    encoder = encoder_from(build(settings["encoder"], 1), settings["depth"])
    decoder = own_decoder(widths_of(settings["depth"]))
    load_weights(encoder, folder / ENCODER)
    load_weights(decoder, folder / DECODER)
    said = {"encoder": settings["encoder"], "depth": settings["depth"], "steps": settings["steps"]}
    return Stylizer(_frozen(encoder), _frozen(decoder), {"weights": "own", "digests": digests} | said)


def _said(path: Path, facts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings and digests. A network's name may be any code's that is installed: only our own are taken."""
    settings, digests = facts.get("settings"), facts.get("digests")
    if isinstance(settings, dict) and isinstance(digests, dict):
        depth = settings.get("depth")
        known = isinstance(depth, int) and 0 < depth <= len(WIDTHS) and settings.get("encoder") in list(NAMES)
        if known and "steps" in settings and {"encoder", "decoder"} <= set(digests):
            return settings, digests
    raise UserError(f"{path} is damaged; remove its folder and train the stylizer again with --train")


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval().to(memory_format=torch.channels_last)

"""Weights of stylizers: the public reference, and those that scripts/train_stylizer.py trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from antishortcut.errors import UserError
from antishortcut.evaluation.stylize.nets import (
    ReferenceEncoder,
    Stylizer,
    encoder_from,
    own_decoder,
    reference_decoder,
    reference_vgg,
)
from antishortcut.fileio import sha256
from antishortcut.models import build
from antishortcut.models.vgg import CONVS, WIDTHS
from antishortcut.models.weights import complain, load_weights, read, strip
from antishortcut.run_dir import read_json

ENCODER, DECODER, FACTS = "encoder.safetensors", "decoder.safetensors", "facts.json"
VERSION = 1  # of the folder and of the training; raise it when either changes


def reference(vgg: Path, decoder: Path, magnify: int = 1) -> Stylizer:
    """The stylizer of naoto0804/pytorch-AdaIN from its `vgg_normalised.pth` and `decoder.pth` (or safetensors)."""
    if magnify < 1:
        raise UserError(f"--magnify is how many times images are enlarged, at least 1, not {magnify}")
    states = [strip(read(path)) for path in (vgg, decoder)]  # before the networks are made, which takes longer
    nets = (reference_vgg(), reference_decoder())
    for path, net, state in zip((vgg, decoder), nets, states, strict=True):
        complain(path, net.state_dict(), state)
        net.load_state_dict(state)
    digests = {"encoder": sha256(vgg), "decoder": sha256(decoder)}
    facts = {"weights": "reference", "digests": digests, "magnify": magnify}
    return Stylizer(_frozen(ReferenceEncoder(nets[0])), _frozen(nets[1]), facts, magnify)


def load(folder: Path) -> Stylizer:
    """A stylizer that scripts/train_stylizer.py trained; a damaged file is refused."""
    path = folder / FACTS
    if not path.exists():
        raise UserError(f"{folder} is no stylizer: it has no {FACTS}; scripts/train_stylizer.py makes one")
    facts = read_json(path)
    if not _is_valid(facts):
        raise UserError(f"{path} is damaged or not of a stylizer of this version; train it again")
    settings, digests = facts["settings"], facts["digests"]
    for name, file in (("encoder", ENCODER), ("decoder", DECODER)):
        if not (folder / file).is_file() or sha256(folder / file) != digests[name]:
            raise UserError(f"{folder / file} is missing or damaged; remove {folder} and train it again")
    encoder = encoder_from(build(settings["encoder"], 1), settings["depth"])
    decoder = own_decoder(WIDTHS[: settings["depth"]])
    load_weights(encoder, folder / ENCODER)
    load_weights(decoder, folder / DECODER)
    used = {key: settings[key] for key in ("encoder", "depth", "steps")}
    return Stylizer(_frozen(encoder), _frozen(decoder), {"weights": "own", "digests": digests} | used)


def _is_valid(facts: Any) -> bool:
    """The encoder's name decides which code is imported: only our own are taken."""
    if not isinstance(facts, dict) or facts.get("kind") != "stylizer" or facts.get("version") != VERSION:
        return False
    settings, digests = facts.get("settings"), facts.get("digests")
    if not isinstance(settings, dict) or not isinstance(digests, dict) or not {"encoder", "decoder"} <= set(digests):
        return False
    known = settings.get("encoder") in list(CONVS) and settings.get("depth") in range(1, len(WIDTHS) + 1)
    return known and "steps" in settings


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval().to(memory_format=torch.channels_last)

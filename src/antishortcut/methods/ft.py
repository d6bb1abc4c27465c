"""FT: factor transfer, Kim, Park & Kwak 2018: the student imitates a compressed form of the teacher's last map.

An autoencoder, the paraphraser, first learns to compress the teacher's map; its code is the teacher's factor.
"""
# B batch, C channels, K channels of a factor, H × W pixels

from copy import deepcopy

import torch
from torch import Tensor, nn

from antishortcut.distributed import gather
from antishortcut.methods.at import attention, same_size
from antishortcut.methods.checks import check_settings, check_stages
from antishortcut.methods.fsp import zero_term
from antishortcut.methods.kd import Distillation, Teachers, Terms
from antishortcut.models.layers import SingleSampleNorm2d
from antishortcut.types import Batch, Features, Sizes


def factor_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean absolute difference of the attention of two factors (B, K, H, W), for each row. (B,)

    The larger factor is averaged to the smaller's size before it is squared.
    """
    student, teacher = same_size(student, teacher)
    return (attention(student) - attention(teacher)).abs().mean(dim=1)


def encoder(c_in: int, c_out: int, *, norm: bool) -> nn.Sequential:
    """Three 3 × 3 convolutions, C → C → K → K, each with a leaky ReLU, of the translator also with a batch norm."""
    layers: list[nn.Module] = []
    for first, last in ((c_in, c_in), (c_in, c_out), (c_out, c_out)):
        layers += [nn.Conv2d(first, last, 3, padding=1), *([SingleSampleNorm2d(last)] if norm else [])]
        layers.append(nn.LeakyReLU(0.1))
    return nn.Sequential(*layers)


def decoder(c_in: int, c_out: int) -> nn.Sequential:
    """The mirror image of the encoder, of transposed convolutions: K → K → C → C."""
    layers: list[nn.Module] = []
    for first, last in ((c_in, c_in), (c_in, c_out), (c_out, c_out)):
        layers += [nn.ConvTranspose2d(first, last, 3, padding=1), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers)


def frozen(module: nn.Module) -> nn.Module:
    """A copy whose weights are buffers: saved, but neither trained nor decayed."""
    copied = deepcopy(module)
    for layer in copied.modules():
        for name, value in list(layer.named_parameters(recurse=False)):
            delattr(layer, name)
            layer.register_buffer(name, value.detach().clone())
    return copied


class FT(Distillation):
    """task_weight · CE + weight · factor distance after `init` epochs of the paraphraser. See docs/methods/ft.md.

    rate: channels of a factor as a share of the teacher's. paraphrase: weight of the paraphraser's loss.
    """

    taps: tuple[str, ...] = ("stages",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        weight: float = 200.0,
        rate: float = 0.5,
        paraphrase: float = 1.0,
        init: float = 30.0,
        task_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_stages(sizes)
        self.stages_read = (-1,)
        check_settings(rate=rate, init=init)
        self.weight, self.paraphrase, self.init, self.task_weight = weight, paraphrase, init, task_weight
        channels = sizes.teachers["final"].stages[-1][0]
        width = max(int(rate * channels), 1)
        self.encoder, self.decoder = encoder(channels, width, norm=False), decoder(width, channels)
        self.paraphraser = frozen(self.encoder)
        self.translator = encoder(sizes.student.stages[-1][0], width, norm=True)

    def terms(self, student: Features, teachers: Teachers, batch: Batch, epoch: float) -> Terms:
        target = teachers["final"].stages[-1].detach()  # (B, C, H, W)
        if epoch < self.init:
            if self.training:
                self._keep_encoder()
            rebuilt = self.decoder(self.encoder(target))
            # the step gathers rows over processes, but not maps
            errors, powers = (gather(x.square().mean(dim=(1, 2, 3))) for x in (rebuilt - target, target))  # (B,)
            loss = errors.mean() / powers.mean().clamp(min=1e-12)  # of maps at any scale, or large ones would diverge
            return {"paraphrase": self.paraphrase * loss, "ft": zero_term(self.translator, student)}
        translated = self.translator(gather(student.stages[-1]))  # batch norm sees the maps of all processes, as on one
        distance = factor_distance(translated, gather(self.paraphraser(target).detach()))  # (B,)
        untrained = zero_term(self.encoder, student) + zero_term(self.decoder, student)
        return {"paraphrase": untrained, "ft": self.weight * distance.mean()}

    @torch.no_grad()
    def _keep_encoder(self) -> None:
        """So the factors are those of the weights before the last step of the initial phase."""
        for copy, weight in zip(self.paraphraser.buffers(), self.encoder.parameters(), strict=True):
            copy.copy_(weight)

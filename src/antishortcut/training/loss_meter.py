"""Running means of a training's losses, and the checks that stop a training whose numbers are not finite."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from antishortcut.errors import UserError
from antishortcut.types import Features


class LossMeter:
    """Means of the losses since the last logged step. Its sums are part of a checkpoint, so logs repeat exactly.

    They stay on the losses' device: reading them waits for it.
    """

    def __init__(self, sums: Mapping[str, Tensor] | None = None) -> None:
        self.sums: dict[str, Tensor] = dict(sums or {})
        self.last: Mapping[str, Tensor] = {}

    def add(self, losses: Mapping[str, Tensor]) -> None:
        self.last = losses
        for name, value in (*losses.items(), ("count", torch.ones(()))):
            new = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
            old = self.sums.get(name)
            self.sums[name] = new if old is None else old.to(new) + new

    def means(self) -> dict[str, float]:
        """The means; the sums start again."""
        count = float(self.sums.pop("count"))
        means = {name: float(value) / count for name, value in self.sums.items()}
        self.sums = {}
        return means

    def check_finite(self, step: int, saved: object, teachers: Mapping[str, Features] | None = None) -> None:
        """A loss that is not finite ends the run before it is saved. saved: what there is to resume from."""
        bad = [name for name, value in self.sums.items() if not torch.isfinite(value)]
        if not bad:
            return
        values = ", ".join(f"{name} {float(value):g}" for name, value in self.last.items())
        outputs = {
            role: (each.logits, each.embedding, *each.stages, *each.preact) for role, each in (teachers or {}).items()
        }
        roles = [repr(role) for role, tensors in outputs.items() if not all(x.isfinite().all() for x in tensors)]
        advice = "lower optim.lr or check the data, or use another --precision"
        if roles:
            advice = f"the outputs of teacher {' and '.join(roles)} are not finite: has that network diverged?"
        raise UserError(f"the loss is not finite at step {step}: {', '.join(bad)} (now {values}); {saved}; {advice}")


def check_finite_weights(module: nn.Module, step: int, saved: object) -> None:
    """Weights that are not finite are never saved: a finite loss may have had a gradient that is not.

    Of buffers only running statistics must be finite; others may hold an infinity on purpose, as masks do.
    """
    parameters = {name for name, _ in module.named_parameters()}
    for name, value in module.state_dict().items():
        strict = name in parameters or "running_" in name
        if value.is_floating_point() and not bool((value.isfinite() if strict else ~value.isnan()).all()):
            raise UserError(f"weights are not finite after step {step}: {name}; {saved}; lower optim.lr or check data")

"""Muon for the hidden matrices, AdamW for the rest, under a warm-up / stable / decay schedule."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn import Parameter
from torch.optim import AdamW, Muon, Optimizer


@dataclass(frozen=True)
class Schedule:
    """Warm-up / stable / decay (WSD, arXiv 2404.06395): until the decay starts, `steps` may still be changed."""

    steps: int
    warmup: int
    decay_share: float

    @property
    def decay_start(self) -> int:
        """The first step of the decay."""
        return self.steps - round(self.steps * self.decay_share)

    def factor(self, step: int) -> float:
        """What the peak learning rate is multiplied with in a step (from 0): up linearly, 1, down linearly to ~0."""
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        fall = (self.steps - step) / max(1, self.steps - self.decay_start)
        return max(0.0, min(rise, fall))


def build_optimizers(model: nn.Module, rate: float) -> tuple[Optimizer, ...]:
    """One Muon over the 2-D hidden matrices and one AdamW over embeddings and norms.

    Both have the peak rate `rate`; Muon's is scaled to AdamW's update size.
    """
    matrices, rest = split_parameters(model)
    return (
        Muon(matrices, lr=rate, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    )


def split_parameters(model: nn.Module) -> tuple[list[Parameter], list[Parameter]]:
    """(hidden matrices, everything else); tied weights appear once."""
    matrices: list[Parameter] = []
    rest: list[Parameter] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if hidden else rest).append(parameter)
    return matrices, rest


def set_learning_rates(optimizers: Sequence[Optimizer], factor: float) -> None:
    """Set every group to its peak rate times `factor`; the peak is remembered in the group itself."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor

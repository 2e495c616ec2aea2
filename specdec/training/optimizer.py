"""Muon for the hidden matrices, AdamW for the rest, under a warm-up / stable / decay schedule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import AdamW, Muon, Optimizer


@dataclass(frozen=True)
class Schedule:
    """Warm-up / stable / decay schedule (WSD, arXiv 2404.06395). `steps` may change until the decay starts."""

    steps: int
    warmup: int
    decay_share: float

    @property
    def decay_start(self) -> int:
        """First step of the decay."""
        return self.steps - round(self.steps * self.decay_share)

    def factor(self, step: int) -> float:
        """Return the factor on the peak learning rate at a step, from 0: a linear rise, 1, then a linear fall."""
        rise = min(1.0, (step + 1) / max(1, self.warmup))
        fall = (self.steps - step) / max(1, self.steps - self.decay_start)
        return max(0.0, min(rise, fall))


class Float32Muon(Muon):
    """Muon with the size of AdamW's updates, computed in float32.

    PyTorch's computes in bfloat16, which takes 15 times as long on a CPU that only converts it.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters by their gradients; there is no closure."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state, momentum = self.state[weight], group["momentum"]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                mean = state["momentum_buffer"].lerp_(weight.grad, 1 - momentum)
                update = _orthogonal(weight.grad.lerp(mean, momentum), group["ns_coefficients"], group["ns_steps"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-0.2 * math.sqrt(max(weight.shape)) * group["lr"])


def _orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Return the matrix with singular values near 1, by `steps` Newton-Schulz iterations."""
    a, b, c = coefficients
    wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if len(matrix) <= matrix.shape[1] else wide.T


def build_optimizers(model: nn.Module, rate: float, dtype: torch.dtype) -> tuple[Optimizer, ...]:
    """Create a Muon optimizer for the 2-D hidden matrices and an AdamW for embeddings and norms.

    Both have the peak rate `rate`; Muon's update is scaled to the size of AdamW's. `dtype` is that of the machine's
    fastest matrix products.
    """
    matrices, rest = split_parameters(model)
    muon = Float32Muon if dtype is torch.float32 else Muon
    return (
        muon(matrices, lr=rate, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    )


def split_parameters(model: nn.Module) -> tuple[list[Parameter], list[Parameter]]:
    """Return (hidden matrices, other parameters). Tied weights appear once."""
    matrices: list[Parameter] = []
    rest: list[Parameter] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
        (matrices if hidden else rest).append(parameter)
    return matrices, rest


def set_learning_rates(optimizers: Sequence[Optimizer], factor: float) -> None:
    """Set every group's rate to its peak times `factor`. The group itself stores the peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor

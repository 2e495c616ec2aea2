"""The hook in transformers' attention: each layer calls the step that is set for the present pass and thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from specdec.errors import ModelRefused

ATTENTION_NAME = "specdec"
"""The name of this implementation in transformers' registry."""


class AttentionRule(NamedTuple):
    """How one layer attends, as its module in transformers passes it on."""

    scale: float | None
    """Factor on the scores; None is 1/√(key width)."""
    window: int | None
    """Number of keys that a query sees, its own included; None sees all before it."""
    softcap: float | None
    """c of c·tanh(score/c), which is applied before the mask; None applies nothing."""
    sinks: Tensor | None
    """A score for each query head that takes part in the softmax but has no value [query heads]; None is no sink."""


class AttentionStep(Protocol):
    """The attention of one forward pass."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Attend with the T packed tokens in one layer, after their keys and values are written to memory.

        Args:
            layer: index of the layer.
            query: [1, query heads, T, key width].
            key: [1, heads, T, key width].
            value: [1, heads, T, value width].
            rule: how the layer attends.

        Returns:
            [1, T, query heads, value width].
        """


_STEP: ContextVar[AttentionStep] = ContextVar("attention step")


@contextmanager
def attending(step: AttentionStep) -> Iterator[None]:
    """Send this thread's attention calls to `step` until the block ends or raises."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    if attention_mask is not None or options.get("position_bias") is not None:
        raise ModelRefused("the model brings an attention mask or bias of its own")
    rule = AttentionRule(
        options.get("scaling"), options.get("sliding_window"), options.get("softcap"), options.get("s_aux")
    )
    if torch.compiler.is_compiling():
        return torch.ops.specdec.attend(query, key, value, module.layer_idx, *rule), None
    return _STEP.get().attend(module.layer_idx, query, key, value, rule), None  # type: ignore[arg-type]


SIGNATURE = (
    "(Tensor query, Tensor key, Tensor value, int layer, float? scale, int? window, float? softcap, Tensor? sinks)"
    " -> Tensor"
)
"""Of an operator of PyTorch that does what `AttentionStep.attend` does."""


def _attend_by_step(query: Tensor, key: Tensor, value: Tensor, layer: int, *rule: Any) -> Tensor:
    """The hook in a compiled model; the compiler knows nothing of it but the shape that it returns."""
    return _STEP.get().attend(layer, query, key, value, AttentionRule(*rule)).contiguous()


# `host_attention.cpp` has an `attend` for the CPU, which comes back to the step for what it does not do by itself.
# Not by `torch.library.custom_op`, which takes twice the time for each call.
for _name in ("attend", "attend_by_step"):
    torch.library.define(f"specdec::{_name}", SIGNATURE)
    torch.library.impl(f"specdec::{_name}", "CompositeExplicitAutograd", _attend_by_step)


@torch.library.register_fake("specdec::attend")  # type: ignore[untyped-decorator]
def _shape(query: Tensor, _key: Tensor, value: Tensor, *_rule: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


# No mask function is registered, so transformers builds no mask: only the step keeps sessions apart.
AttentionInterface.register(ATTENTION_NAME, _attend)

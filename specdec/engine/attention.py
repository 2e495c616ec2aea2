"""The hook in transformers' attention: each layer calls the step that is set for the current pass and thread."""

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
    """Attention parameters of one layer, as its transformers module passes them."""

    scale: float | None
    """Factor on the scores; None is 1/√(key width)."""
    window: int | None
    """Number of keys that a query sees, including its own; None sees all earlier keys."""
    softcap: float | None
    """c of c·tanh(score/c), which is applied before the mask; None applies no cap."""
    sinks: Tensor | None
    """Score of each query head that takes part in the softmax without a value [query heads]; None is no sink."""


class AttentionStep(Protocol):
    """The attention of one forward pass."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Write the keys and values of the T packed tokens in one layer to memory, then attend.

        Args:
            layer: index of the layer.
            query: [1, query heads, T, key width].
            key: [1, heads, T, key width].
            value: [1, heads, T, value width].
            rule: attention parameters of the layer.

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


def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
    """Attend in the step that is set for this thread, also in compiled code; shapes as in `AttentionStep.attend`."""
    if torch.compiler.is_compiling():
        attended: Tensor = torch.ops.specdec.attend(query, key, value, layer, *rule)
        return attended
    return _STEP.get().attend(layer, query, key, value, rule)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    if attention_mask is not None or options.get("position_bias") is not None:
        raise ModelRefused("the model brings an attention mask or bias of its own")
    rule = AttentionRule(
        options.get("scaling"), options.get("sliding_window"), options.get("softcap"), options.get("s_aux")
    )
    return attend(module.layer_idx, query, key, value, rule), None  # type: ignore[arg-type]


SIGNATURE = (
    "(Tensor query, Tensor key, Tensor value, int layer, float? scale, int? window, float? softcap, Tensor? sinks)"
    " -> Tensor"
)
"""Signature of a PyTorch operator equivalent to `AttentionStep.attend`."""


def _attend_by_step(query: Tensor, key: Tensor, value: Tensor, layer: int, *rule: Any) -> Tensor:
    """The hook in a compiled model, opaque to the compiler except for the shape of its result."""
    return _STEP.get().attend(layer, query, key, value, AttentionRule(*rule)).contiguous()


# `host_attention.cpp` has an `attend` for the CPU, which calls the step for the cases that it does not handle.
# `torch.library.custom_op` would have more overhead for each call.
for _name in ("attend", "attend_by_step"):
    torch.library.define(f"specdec::{_name}", SIGNATURE)
    torch.library.impl(f"specdec::{_name}", "CompositeExplicitAutograd", _attend_by_step)


@torch.library.register_fake("specdec::attend")  # type: ignore[untyped-decorator]
def _shape(query: Tensor, _key: Tensor, value: Tensor, *_rule: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


# No mask function is registered, so transformers builds no mask: only the step separates sessions.
AttentionInterface.register(ATTENTION_NAME, _attend)

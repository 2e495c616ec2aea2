"""The door in transformers' attention: every layer's call goes to the step that the model's thread runs now."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from specdec.errors import ModelRefused

NAME = "specdec"


class Rule(NamedTuple):
    """How one layer attends, as its own module asks for it."""

    scale: float | None
    """Factor on the scores; None is 1/√width."""
    window: int | None
    """Keys a query sees, itself included; None sees all."""
    softcap: float | None
    """c in c·tanh(score/c), before the mask."""
    sinks: Tensor | None
    """[query heads], a score that takes part in the softmax and has no value."""


class Step(Protocol):
    """One forward pass, as its attention layers see it."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Attention of the T packed tokens.

        Args:
            layer: index of the layer.
            query: [1, query heads, T, key width].
            key: [1, heads, T, key width].
            value: [1, heads, T, value width].
            rule: how this layer attends.

        Returns:
            [1, T, query heads, value width].
        """


_STEP: ContextVar[Step] = ContextVar("attention step")


@contextmanager
def attending(step: Step) -> Iterator[None]:
    """Send this thread's attention calls to `step` until the block ends, however it ends."""
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
    rule = Rule(options.get("scaling"), options.get("sliding_window"), options.get("softcap"), options.get("s_aux"))
    if torch.compiler.is_compiling():
        return torch.ops.specdec.attend(query, key, value, module.layer_idx, *rule), None
    return _STEP.get().attend(module.layer_idx, query, key, value, rule), None  # type: ignore[arg-type]


@torch.library.custom_op("specdec::attend", mutates_args=())
def _opaque(  # noqa: PLR0913 - an operator takes its values one by one
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layer: int,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """The door in a compiled model, which knows no more of what is behind it than the shape that comes back."""
    return _STEP.get().attend(layer, query, key, value, Rule(scale, window, softcap, sinks)).contiguous()


@_opaque.register_fake
def _shape(query: Tensor, _key: Tensor, value: Tensor, *_rule: object) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


# The name has no mask function, so transformers builds no mask either: sessions are kept apart by the step alone.
AttentionInterface.register(NAME, _attend)

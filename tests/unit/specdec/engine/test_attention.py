"""The attention function registered with transformers works inside one block, in one thread."""

from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from specdec.engine.attention import ATTENTION_NAME, AttentionRule, attending
from specdec.errors import ModelRefused

TENSOR = torch.zeros(1, 1, 1, 1)


class NotedStep:
    def __init__(self) -> None:
        self.calls: list[tuple[int, AttentionRule]] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        self.calls.append((layer, rule))
        return query


def call(mask: Tensor | None = None, **options: Any) -> Any:
    function: Any = AttentionInterface()[ATTENTION_NAME]
    return function(SimpleNamespace(layer_idx=3), TENSOR, TENSOR, TENSOR, mask, **options)


def test_a_call_reaches_the_step_with_the_layer_and_its_rule() -> None:
    step = NotedStep()
    with attending(step):
        call(scaling=0.5, sliding_window=4, softcap=2.0, s_aux=TENSOR, dropout=0.0)
    assert step.calls == [(3, AttentionRule(0.5, 4, 2.0, TENSOR))]


def test_outside_the_block_there_is_no_step() -> None:
    with attending(NotedStep()):
        pass
    with pytest.raises(LookupError):
        call()


def test_an_error_inside_the_block_closes_the_door_too() -> None:
    with pytest.raises(ZeroDivisionError), attending(NotedStep()):
        raise ZeroDivisionError
    with pytest.raises(LookupError):
        call()


def test_blocks_nest() -> None:
    outer, inner = NotedStep(), NotedStep()
    with attending(outer):
        with attending(inner):
            call()
        call()
    assert (len(outer.calls), len(inner.calls)) == (1, 1)


def test_another_thread_does_not_see_the_step() -> None:
    seen: list[str] = []

    def other() -> None:
        try:
            call()
        except LookupError:
            seen.append("none")

    with attending(NotedStep()):
        thread = Thread(target=other)
        thread.start()
        thread.join()
    assert seen == ["none"]


@pytest.mark.parametrize("extra", [{"mask": TENSOR}, {"position_bias": TENSOR}])
def test_a_model_with_a_mask_of_its_own_is_refused_not_ignored(extra: dict[str, Tensor]) -> None:
    with attending(NotedStep()), pytest.raises(ModelRefused, match="of its own"):
        call(**extra)

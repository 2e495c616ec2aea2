"""A token's keys and values have one size and shape."""

import pytest
import torch

from specdec.engine.kv.layout import KvLayout
from specdec.errors import InternalError


def layout(key_width: int, value_width: int) -> KvLayout:
    return KvLayout(2, 3, key_width, value_width, torch.float32, torch.device("cpu"))


def test_a_tokens_bytes_are_all_layers_keys_and_values() -> None:
    assert layout(4, 6).token_bytes == 2 * 3 * (4 + 6) * 4


def test_keys_and_values_of_another_model_are_refused() -> None:
    at = layout(4, 6)
    at.check(torch.zeros(2, 3, 5, 10), 5)
    for kv in (torch.zeros(2, 3, 4, 10), torch.zeros(2, 3, 5, 11), torch.zeros(2, 3, 5, 10, dtype=torch.float16)):
        with pytest.raises(InternalError, match="keys and values are"):
            at.check(kv, 5)

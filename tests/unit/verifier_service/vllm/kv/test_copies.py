"""Copies of a worker are reported once they have ended, however the steps fall between."""

import numpy as np
import torch

from tests.unit.verifier_service.vllm.kv.kv_pair import BLOCK_BYTES
from verifier_service.vllm.kv.copies import BlockCopies
from verifier_service.vllm.kv.messages import BlockCopy, BlockLoad


def test_a_step_between_a_copy_and_its_end_loses_nothing() -> None:
    copies = BlockCopies([torch.zeros(4, BLOCK_BYTES // 4)], rank=0)
    value = np.arange(BLOCK_BYTES, dtype=np.uint8)
    loaded = copies._load(BlockLoad("r", [2], [value], last=True))
    read = copies._copy(BlockCopy(7, [2]))
    assert copies.take() == (set(), None)
    loaded()
    read()
    ended, parts = copies.take()
    copies.close()
    assert ended == {"r"}
    assert parts is not None
    assert (parts.parts[7][0] == value).all()

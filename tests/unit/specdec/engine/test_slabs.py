"""Pages are whole blocks and whole operating system pages, and take memory only after a write."""

import mmap
import os
from pathlib import Path

import pytest
import torch

from specdec.engine.cpu.slabs import SlabStore
from specdec.engine.kv.layout import KvLayout
from specdec.rules.blocks import BLOCK_TOKENS


def store(key_width: int, value_width: int, dtype: torch.dtype = torch.float32) -> SlabStore:
    return SlabStore(KvLayout(2, 3, key_width, value_width, dtype, torch.device("cpu")), 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("widths", [(64, 64), (128, 128), (8, 8), (80, 80), (24, 16), (192, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_is_whole_in_every_head_and_holds_whole_blocks(widths: tuple[int, int], dtype: torch.dtype) -> None:
    at = store(*widths, dtype)
    assert at.page_tokens % BLOCK_TOKENS == 0
    for width in widths:
        assert at.page_tokens * width * dtype.itemsize % mmap.PAGESIZE == 0
    assert at.page_bytes == at.page_tokens * at.layout.token_bytes
    assert (at.pages(0), at.pages(1), at.pages(at.page_tokens), at.pages(at.page_tokens + 1)) == (0, 1, 1, 2)


def test_a_slab_has_room_for_its_pages() -> None:
    at = store(64, 128)
    slab = at.open(2 * at.page_tokens + 1, b"")
    keys, values = slab.keys, slab.values
    assert keys.shape == (2, 1, 3, 3 * at.page_tokens, 64)
    assert values.shape == (2, 1, 3, 3 * at.page_tokens, 128)
    assert keys.nbytes + values.nbytes == 3 * at.page_bytes
    assert at.open(0, b"").keys.shape[3] == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not tell a process its memory")
def test_memory_is_taken_as_it_is_written_and_given_back_with_the_slab() -> None:
    at = store(64, 64)
    pages = 1000
    before = resident_bytes()
    slab = at.open(pages * at.page_tokens, b"")
    keys, values = slab.keys, slab.values
    assert keys.nbytes + values.nbytes == pages * at.page_bytes > 40 << 20
    assert resident_bytes() - before < 4 << 20
    written = pages // 2 * at.page_tokens
    keys[..., :written, :], values[..., :written, :] = 1.0, 1.0
    half = pages // 2 * at.page_bytes
    assert half <= resident_bytes() - before < half + (4 << 20)
    del keys, values, slab
    assert resident_bytes() - before < 4 << 20

"""Pages are whole blocks and whole pages of the operating system, and take memory only once they are written."""

import mmap
import os
from pathlib import Path

import pytest
import torch

from specdec.blocks import BLOCK_TOKENS
from specdec.engine.kv_layout import KvLayout
from specdec.errors import InternalError

CPU = torch.device("cpu")


def layout(key_width: int, value_width: int, dtype: torch.dtype = torch.float32) -> KvLayout:
    return KvLayout(2, 3, key_width, value_width, dtype, CPU)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_tokens_bytes_are_all_layers_keys_and_values() -> None:
    assert layout(4, 6).token_bytes == 2 * 3 * (4 + 6) * 4


@pytest.mark.parametrize("widths", [(64, 64), (128, 128), (8, 8), (80, 80), (24, 16), (192, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_is_whole_in_every_head_and_holds_whole_blocks(widths: tuple[int, int], dtype: torch.dtype) -> None:
    at = layout(*widths, dtype)
    assert at.page_tokens % BLOCK_TOKENS == 0
    for width in widths:
        assert at.page_tokens * width * dtype.itemsize % mmap.PAGESIZE == 0
    assert at.page_bytes == at.page_tokens * at.token_bytes
    assert (at.pages(0), at.pages(1), at.pages(at.page_tokens), at.pages(at.page_tokens + 1)) == (0, 1, 1, 2)


def test_a_slab_has_room_for_its_pages() -> None:
    at = layout(64, 128)
    keys, values = at.slab(3)
    assert keys.shape == (2, 1, 3, 3 * at.page_tokens, 64)
    assert values.shape == (2, 1, 3, 3 * at.page_tokens, 128)
    assert keys.nbytes + values.nbytes == 3 * at.page_bytes
    assert [part.shape[3] for part in at.slab(0)] == [0, 0]


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not tell a process its memory")
def test_memory_is_taken_as_it_is_written_and_given_back_with_the_slab() -> None:
    at = layout(64, 64)
    pages = 1000
    before = resident_bytes()
    keys, values = at.slab(pages)
    assert keys.nbytes + values.nbytes == pages * at.page_bytes > 40 << 20
    assert resident_bytes() - before < 4 << 20
    written = pages // 2 * at.page_tokens
    keys[..., :written, :], values[..., :written, :] = 1.0, 1.0
    half = pages // 2 * at.page_bytes
    assert half <= resident_bytes() - before < half + (4 << 20)
    del keys, values
    assert resident_bytes() - before < 4 << 20


def test_keys_and_values_of_another_model_are_refused() -> None:
    at = layout(4, 6)
    at.check(torch.zeros(2, 3, 5, 10), 5)
    for kv in (torch.zeros(2, 3, 4, 10), torch.zeros(2, 3, 5, 11), torch.zeros(2, 3, 5, 10, dtype=torch.float16)):
        with pytest.raises(InternalError, match="keys and values are"):
            at.check(kv, 5)

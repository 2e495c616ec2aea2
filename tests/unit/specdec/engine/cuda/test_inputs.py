"""The flat row gives every token's KV slots and visible tokens. Padding has no effect."""

import torch

from specdec.engine.batch import PackedBatch
from specdec.engine.cuda.inputs import PassInputs, PassShape, flatten, lineage_bits, sequence_shares, views
from specdec.engine.cuda.pages import PageList, PageStore
from specdec.engine.kv.layout import KvLayout
from specdec.trees.tree import Tree

LAYOUT = KvLayout(1, 1, 1, 1, torch.float32, torch.device("cpu"))
FORKED = Tree((-1, 0, 0, 2))


def lists(*lengths: tuple[int, int]) -> list[PageList]:
    """Return sequences with these lengths and additional pages; the first page has the highest number."""
    store = PageStore(LAYOUT, 32 * 16 * LAYOUT.token_bytes)
    made = []
    for length, more in lengths:
        sequence = store.open(1000, b"")
        sequence.grow([0] * length)
        store.extend(sequence, length + more)
        made.append(sequence)
    return made


def row(shape: PassShape, sequences: list[PageList], batch: PackedBatch) -> PassInputs[torch.Tensor]:
    return views(flatten(shape, sequences, batch, list(sequence_shares(sequences, batch)), False), shape)


def test_each_token_is_told_its_slot_its_owner_and_what_it_sees() -> None:
    sequences = lists((15, 3), (0, 4))
    batch = PackedBatch([1, 2, 3, 4, 5, 6, 7], [15, 16, 17, 0, 1, 1, 2], [3, 4], [None, FORKED], [2, 6])
    inputs = row(PassShape(8, 4, 4), sequences, batch)
    assert inputs.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert inputs.positions.tolist() == [15, 16, 17, 0, 1, 1, 2, 0]
    assert inputs.slots.tolist() == [15, 16, 17, 32, 33, 34, 35, -1]
    assert inputs.owner.tolist() == [0, 0, 0, 1, 1, 1, 1, -1]
    assert inputs.bits.tolist() == [0, 0, 0, 1, 3, 5, 13, 0]
    assert inputs.keep.tolist() == [2, 6, 0, 0, 0, 0, 0, 0]
    assert inputs.starts.tolist() == [0, 3, 7, 7, 7]
    assert inputs.lengths.tolist() == [18, 4, 0, 0]
    assert inputs.tables.tolist() == [0, 2, 0, 0]
    assert inputs.pages.tolist() == [0, 1, 2]


def test_reserved_pages_after_the_last_token_are_not_told() -> None:
    sequences = lists((3, 100))
    assert row(PassShape(1, 1, 1), sequences, PackedBatch([1], [3], [1], [None], [])).pages.tolist() == [0]


def test_a_chunk_beyond_the_shape_s_queries_is_stored_and_gathered_later() -> None:
    sequences = lists((3, 2), (5, 1))
    inputs = row(PassShape(3, 2, 1), sequences, PackedBatch([1, 2, 3], [3, 4, 5], [2, 1], [None, None], []))
    assert inputs.slots.tolist() == [3, 4, 21]
    assert inputs.owner.tolist() == [-1, -1, 1]
    assert inputs.lengths.tolist() == [0, 6]


def test_the_last_of_as_many_nodes_as_bits_is_told_too() -> None:
    bits = lineage_bits(Tree.chain(64)).tolist()
    assert bits[:3] == [1, 3, 7]
    assert bits[63] == -1
    assert lineage_bits(Tree((*range(-1, 62), 0))).tolist()[63] == 1 - (1 << 63)


def test_padding_alone_is_a_row_too() -> None:
    inputs = row(PassShape(2, 2, 1), [], PackedBatch([], [], [], [], []))
    assert inputs.slots.tolist() == inputs.owner.tolist() == [-1, -1]
    assert inputs.starts.tolist() == [0, 0, 0]
    assert inputs.lengths.tolist() == [0, 0]

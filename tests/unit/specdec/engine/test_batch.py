"""Chunks of many sessions become one packed row."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from specdec.engine.batch import Chunk, StateRows, pack
from specdec.errors import InternalError
from specdec.trees.tree import Tree


def test_tokens_follow_each_other_with_positions_of_their_own_session() -> None:
    batch = pack([Chunk("a", [7, 8, 9], 1), Chunk("b", [5], 1)], [10, 0], vocab_size=16)
    assert batch.tokens == [7, 8, 9, 5]
    assert batch.positions == [10, 11, 12, 0]
    assert batch.counts == [3, 1]


def test_only_the_last_tokens_of_each_chunk_keep_logits() -> None:
    batch = pack([Chunk("a", [1, 2, 3], 2), Chunk("b", [4, 5], 0), Chunk("c", [6], 1)], [0, 0, 0], vocab_size=16)
    assert batch.keep == [1, 2, 5]


def test_a_trees_tokens_stand_at_their_depth_behind_the_session() -> None:
    batch = pack([Chunk("a", [7, 8, 9, 6], 4, [-1, 0, 0, 1]), Chunk("b", [5, 4], 1)], [10, 3], vocab_size=16)
    assert batch.positions == [10, 11, 11, 12, 3, 4]
    assert batch.trees == [Tree((-1, 0, 0, 1)), None]
    assert batch.keep == [0, 1, 2, 3, 5]


def test_parents_that_form_a_chain_are_no_tree() -> None:
    assert pack([Chunk("a", [7, 8, 9], 1, [-1, 0, 1])], [4], vocab_size=16) == pack(
        [Chunk("a", [7, 8, 9], 1)], [4], vocab_size=16
    )


def test_a_part_has_some_of_the_chunks_and_knows_which_logits_are_theirs() -> None:
    chunks = [Chunk("a", [1, 2, 3], 2), Chunk("b", [4, 5], 0), Chunk("c", [6], 1), Chunk("d", [7, 8], 2, [-1, -1])]
    whole = pack(chunks, [10, 20, 30, 40], vocab_size=16)
    assert whole.part([0, 2]) == (pack([chunks[0], chunks[2]], [10, 30], 16), [0, 1, 2])
    assert whole.part([1, 3]) == (pack([chunks[1], chunks[3]], [20, 40], 16), [3, 4])
    assert whole.part([1]) == (pack([chunks[1]], [20], 16), [])


def test_tokens_may_be_any_sequence() -> None:
    assert pack([Chunk("a", range(3), 0)], [4], vocab_size=16).tokens == [0, 1, 2]


@pytest.mark.parametrize(
    ("chunks", "told"),
    [
        ([Chunk("a", [], 0)], "without tokens"),
        ([Chunk("a", [1], 2)], "2 logits wanted of 1"),
        ([Chunk("a", [1], -1)], "-1 logits wanted"),
        ([Chunk("a", [16], 0)], "outside 0..15"),
        ([Chunk("a", [-1], 0)], "outside 0..15"),
        ([Chunk("a", [1], 0), Chunk("a", [2], 0)], "two chunks"),
        ([Chunk("a", [1, 2], 0, [-1])], "1 parents of 2 tokens"),
        ([Chunk("a", [1, 2], 0, [-1, 1])], r"a: the parent of node 1 must be in \[-1, 0\], got 1"),
    ],
)
def test_a_malformed_chunk_is_refused(chunks: list[Chunk], told: str) -> None:
    with pytest.raises(InternalError, match=told):
        pack(chunks, [0] * len(chunks), vocab_size=16)


def test_the_states_of_parts_are_joined_whichever_ends_first() -> None:
    states = [torch.arange(10.0).view(5, 2) + layer for layer in (0.0, 100.0)]
    together = Barrier(2)

    def run(part: StateRows, rows: list[int]) -> None:
        own = [each[rows] for each in states]
        together.wait()
        part.put(own)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(300):
            whole = StateRows(5)
            parts = [(whole.part(rows), rows) for rows in ([0, 2, 4], [1, 3])]
            for ran in [threads.submit(run, *part) for part in parts]:
                ran.result()
            assert all(torch.equal(found, expected) for found, expected in zip(whole.layers, states, strict=True))

"""Passes over many tokens are divided into even parts, if there are any, with a thread for each."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specdec.engine.batch import Chunk, PackedBatch, pack
from specdec.engine.cpu.wide_passes import WIDE, WidePasses, balanced
from specdec.errors import InternalError

Run = Callable[[Sequence[str], PackedBatch], Tensor]


def wide_batch(*counts: int, logits: int = 2) -> tuple[list[str], PackedBatch]:
    """Return sequences and a pass over this many tokens of each. All tokens are different."""
    ids = iter(range(sum(counts)))
    names = [f"s{at}" for at in range(len(counts))]
    chunks = [
        Chunk(name, [next(ids) for _ in range(count)], min(logits, count))
        for name, count in zip(names, counts, strict=True)
    ]
    return names, pack(chunks, [100 * at for at in range(len(counts))], vocab_size=sum(counts))


def echoed(sequences: Sequence[str], batch: PackedBatch) -> Tensor:
    """Return logits that identify their sequence, token and position."""
    owner = [name for name, count in zip(sequences, batch.counts, strict=True) for _ in range(count)]
    rows = [(float(owner[at][1:]), float(batch.tokens[at]), float(batch.positions[at])) for at in batch.keep]
    return torch.tensor(rows).reshape(-1, 3)


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("logits", [0, 2, 1000])
def test_a_pass_in_parts_has_the_logits_of_the_whole(parts: int, logits: int) -> None:
    sequences, batch = wide_batch(9, 30, 1, 20, 29, 31, 2, 10, logits=logits)
    found = WidePasses(echoed, parts * torch.get_num_threads(), apart=True)(sequences, batch)
    assert torch.equal(found, echoed(sequences, batch))
    assert found.is_contiguous()


def test_the_parts_run_at_the_same_time_each_with_the_usual_threads() -> None:
    both, seen = threading.Barrier(2, timeout=30), list[tuple[int, int, int]]()

    def run(sequences: Sequence[str], batch: PackedBatch) -> Tensor:
        both.wait()
        seen.append((threading.get_ident(), torch.get_num_threads(), len(batch.tokens)))
        return echoed(sequences, batch)

    own = torch.get_num_threads()
    WidePasses(run, 2 * own, apart=True)(*wide_batch(20, 20, 20, 20))
    assert len({thread for thread, _, _ in seen}) == 2
    assert [found[1:] for found in seen] == [(own, 40), (own, 40)]


@pytest.mark.parametrize(
    ("counts", "apart", "threads"),
    [
        ((1, 2, WIDE - 4), True, 1),  # few tokens
        ((60, 20), True, 2),  # mostly tokens of one session
        ((40, 40), False, 2),  # passes that would wait for each other
    ],
)
def test_other_passes_are_run_whole(
    counts: tuple[int, ...], apart: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, count = list[tuple[int, int]](), [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: count[-1])
    monkeypatch.setattr(torch, "set_num_threads", count.append)

    def run(sequences: Sequence[str], batch: PackedBatch) -> Tensor:
        seen.append((torch.get_num_threads(), len(batch.tokens)))
        return echoed(sequences, batch)

    WidePasses(run, 2, apart=apart)(*wide_batch(*counts))
    assert seen == [(threads, sum(counts))]
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("failing", ["s0", "s1"])
def test_an_error_of_one_part_is_raised_when_no_other_part_runs(failing: str) -> None:
    running = set[str]()

    def run(sequences: Sequence[str], _batch: PackedBatch) -> Tensor:
        if failing in sequences:
            raise InternalError("no memory")
        running.update(sequences)
        time.sleep(0.05)
        running.clear()
        return torch.empty(0, 3)

    with pytest.raises(InternalError, match="no memory"):
        WidePasses(run, 2 * torch.get_num_threads(), apart=True)(*wide_batch(40, 40))
    assert not running


def test_parts_have_about_the_same_number_of_tokens() -> None:
    assert balanced([1, 50, 2, 30, 20], 2) == [[1, 2], [0, 3, 4]]
    assert balanced([3, 3, 3, 3], 2) == [[0, 2], [1, 3]]
    assert balanced([5, 4], 1) == [[0, 1]]

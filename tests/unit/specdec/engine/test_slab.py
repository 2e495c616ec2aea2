"""A slab keeps the accepted path and returns the written KV."""

import pytest
import torch

from specdec.engine.cpu.slabs import Slab, SlabStore
from specdec.engine.kv.layout import KvLayout
from specdec.errors import InternalError
from specdec.trees.tree import Tree

LAYOUT = KvLayout(layers=3, heads=2, key_width=4, value_width=6, dtype=torch.float32, device=torch.device("cpu"))
FORKED = Tree((-1, 0, 0, 2, 1, 3))


def grown(base: int, tree: Tree) -> Slab:
    """Return a slab whose tokens, keys and values equal their slot's number, with a tree after `base` tokens."""
    slab = SlabStore(LAYOUT, 0).open(20, b"")
    slab.keys[..., :20, :], slab.values[..., :20, :] = torch.arange(20.0)[:, None], torch.arange(20.0)[:, None]
    slab.grow(range(base))
    slab.grow(range(base, base + len(tree)), None if tree.is_chain else tree)
    return slab


def slots(slab: Slab) -> list[float]:
    """Return each kept token's number, after a check that all layers, heads and columns agree."""
    kept = [part[..., : slab.length, :].movedim(-2, 0).flatten(1) for part in (slab.keys, slab.values)]
    assert all(bool((part == part[:, :1]).all()) for part in kept)
    assert torch.equal(kept[0][:, 0], kept[1][:, 0])
    numbers: list[float] = kept[0][:, 0].tolist()
    assert slab.tokens == numbers
    return numbers


@pytest.mark.parametrize("length", [-1, 4])
def test_truncation_only_shortens(length: int) -> None:
    slab = grown(3, Tree())
    with pytest.raises(InternalError, match="cannot truncate 3 tokens"):
        slab.truncate(length)
    assert slab.length == 3


@pytest.mark.parametrize("path", [(), (0,), (0, 1), (0, 2), (0, 1, 4), (0, 2, 3, 5)])
def test_a_kept_path_lies_behind_the_base_and_the_rest_is_gone(path: tuple[int, ...]) -> None:
    slab = grown(7, FORKED)
    slab.keep(7, path)
    assert slots(slab) == [*range(7), *(7 + node for node in path)]
    assert slab.tree is None


@pytest.mark.parametrize(("base", "path"), [(7, (1,)), (7, (0, 3)), (7, (0, 1, 2)), (7, (0, 6)), (6, (0,)), (8, (0,))])
def test_what_is_no_path_of_the_last_chunk_is_refused(base: int, path: tuple[int, ...]) -> None:
    slab = grown(7, FORKED)
    with pytest.raises(InternalError, match="no path"):
        slab.keep(base, path)
    assert slab.length == 13
    assert slab.tree == FORKED


def test_of_a_chain_a_path_is_its_beginning() -> None:
    slab = grown(7, Tree.chain(4))
    slab.keep(7, (0, 1))
    assert slots(slab) == list(range(9))
    with pytest.raises(InternalError, match="no path"):
        slab.keep(7, (1,))
    with pytest.raises(InternalError, match="no path"):
        slab.keep(10, ())


def test_of_a_tree_no_more_than_the_trunk_survives_truncation() -> None:
    slab = grown(7, FORKED)
    with pytest.raises(InternalError, match="cannot truncate 13 tokens, 9 of them a chain, to 10"):
        slab.truncate(10)
    slab.truncate(9)
    assert (slab.length, slab.tree) == (9, None)


def test_what_is_read_of_one_slab_is_written_to_another_to_the_bit() -> None:
    one, other = grown(9, Tree()), grown(4, Tree())
    other.keys[..., 4:, :], other.values[..., 4:, :] = torch.nan, torch.nan
    kv = one.read(4, 9)
    assert kv.shape == (3, 2, 5, 10)
    other.append(one.tokens[4:], kv)
    assert slots(other) == slots(one)

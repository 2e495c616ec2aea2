"""Trees of drafts in the engine: each node's logits are those of the plain model after its lineage, and keeping a path
leaves the session as a chain would."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.engine import Chunk, NativeEngine
from specdec.errors import InternalError
from specdec.trees.tree import Tree
from tests.support.tiny_models import WINDOW

pytestmark = pytest.mark.integration

Load = Callable[..., NativeEngine]

CONTEXT = [(7 + 31 * i * i) % 320 for i in range(WINDOW + 6)]
PENDING = 2
FORKED = Tree((-1, -1, 0, 0, 1, 4, 3, 6, -1))
NODES = [(50 + 37 * i * i) % 320 for i in range(len(FORKED))]
WIDE = Tree(tuple(max(-1, node - 2) for node in range(40)))
"""Two interleaved strands, each longer than a window; more nodes than the engine folds into one product."""
WIDE_NODES = [(90 + 41 * i * i) % 320 for i in range(len(WIDE))]
HUGE = Tree(tuple(max(-1, node - 2) for node in range(70)))
"""More nodes than kernels over pages accept."""
HUGE_NODES = [(11 + 43 * i * i) % 320 for i in range(len(HUGE))]


def chunk(session: str, pending: list[int], tree: Tree, tokens: list[int]) -> Chunk:
    return Chunk(session, pending + tokens, len(tokens) + 1, tree.after(len(pending)).parents)


def lineage(tree: Tree, node: int) -> list[int]:
    return tree.ancestors[node].nonzero()[:, 0].tolist()


class Plain:
    """The model of the same folder in plain `transformers`."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")

    def last(self, tokens: list[int]) -> Tensor:
        with torch.no_grad():
            return self._model.eval()(torch.tensor([tokens])).logits[0, -1, :320]

    def tree(self, context: list[int], tree: Tree, tokens: list[int]) -> Tensor:
        """Return the logits after the context and after each node's lineage: [n + 1, vocab_size]."""
        paths = [[], *([tokens[each] for each in lineage(tree, node)] for node in range(len(tree)))]
        return torch.stack([self.last(context + path) for path in paths])


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "gpt_oss"])
def test_a_node_s_logits_are_those_of_its_lineage_beside_other_rows(
    architecture: str, load: Load, tiny: Callable[[str], Path]
) -> None:
    engine, plain = load(architecture), Plain(tiny(architecture))
    for name in ("forked", "wide", "chain", "prefill"):
        assert engine.admit(name, 100)
    ready = CONTEXT[:-PENDING]
    engine.forward([Chunk(name, ready, 0) for name in ("forked", "wide", "chain")])
    logits = engine.forward(
        [
            Chunk("prefill", CONTEXT[:7], 1),
            chunk("forked", CONTEXT[-PENDING:], FORKED, NODES),
            Chunk("chain", [*CONTEXT[-PENDING:], 5, 9], 3),
            chunk("wide", CONTEXT[-PENDING:], WIDE, WIDE_NODES),
        ]
    )
    prefill, forked, chain, wide = logits.split_with_sizes([1, len(FORKED) + 1, 3, len(WIDE) + 1])
    close(prefill[0], plain.last(CONTEXT[:7]))
    close(forked, plain.tree(CONTEXT, FORKED, NODES))
    close(chain, plain.tree(CONTEXT, Tree.chain(2), [5, 9]))
    close(wide, plain.tree(CONTEXT, WIDE, WIDE_NODES))


def test_a_tree_may_have_more_nodes_than_bits(load: Load, tiny: Callable[[str], Path]) -> None:
    engine, plain = load("llama"), Plain(tiny("llama"))
    for name in ("tree", "chain"):
        assert engine.admit(name, 100)
    logits = engine.forward([chunk("tree", [8], HUGE, HUGE_NODES), Chunk("chain", [5, 9], 1)])
    close(logits[:-1], plain.tree([8], HUGE, HUGE_NODES))
    close(logits[-1], plain.last([5, 9]))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2"])
def test_a_fresh_session_may_begin_with_a_tree(architecture: str, load: Load, tiny: Callable[[str], Path]) -> None:
    engine, plain = load(architecture), Plain(tiny(architecture))
    engine.admit("a", 100)
    close(engine.forward([chunk("a", [8], WIDE, WIDE_NODES)]), plain.tree([8], WIDE, WIDE_NODES))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("node", [0, 5, 7, 8, None], ids="node {}".format)
def test_after_a_kept_path_the_session_goes_on_as_a_plain_run(
    architecture: str, node: int | None, load: Load, tiny: Callable[[str], Path]
) -> None:
    engine, plain = load(architecture), Plain(tiny(architecture))
    for name in ("a", "bystander"):
        engine.admit(name, 100)
        engine.forward([Chunk(name, CONTEXT[:-PENDING], 0)])
    base = engine.length("a")
    engine.forward([chunk("a", CONTEXT[-PENDING:], FORKED, NODES), Chunk("bystander", CONTEXT[-PENDING:], 0)])
    path = [] if node is None else lineage(FORKED, node)
    engine.keep("a", base, [*range(PENDING), *(PENDING + each for each in path)])
    committed = CONTEXT + [NODES[each] for each in path]
    assert engine.length("a") == len(committed)
    again = engine.forward([chunk("a", [3], FORKED, NODES), Chunk("bystander", [4], 1)])
    close(again[:-1], plain.tree([*committed, 3], FORKED, NODES))
    close(again[-1], plain.last([*CONTEXT, 4]))
    engine.keep("a", len(committed), [0, 2, 5])
    close(engine.forward([Chunk("a", [6, 11], 1)])[0], plain.last([*committed, 3, NODES[1], NODES[4], 6, 11]))


def test_a_tree_must_be_settled_before_the_next_chunk(load: Load) -> None:
    engine = load()
    engine.admit("a", 100)
    engine.forward([Chunk("a", CONTEXT, 0)])
    engine.forward([chunk("a", [3], FORKED, NODES)])
    with pytest.raises(InternalError, match="a has kept no path of its tree"):
        engine.forward([Chunk("a", [4], 1)])
    with pytest.raises(InternalError, match="no path"):
        engine.keep("a", len(CONTEXT), [0, 3])
    engine.truncate("a", len(CONTEXT) + 1)
    engine.forward([Chunk("a", [4], 1)])
    assert engine.length("a") == len(CONTEXT) + 2


def test_a_chain_given_by_its_parents_is_the_same_chain_to_the_bit(load: Load) -> None:
    engine = load("gemma2")
    for name in ("a", "b"):
        engine.admit(name, 100)
        engine.forward([Chunk(name, CONTEXT, 0)])
    told, plain = (
        engine.forward([Chunk(name, [1, 2, 3], 3, parents)]) for name, parents in [("a", [-1, 0, 1]), ("b", None)]
    )
    assert torch.equal(told, plain)
    engine.keep("a", len(CONTEXT), [0, 1])
    engine.truncate("b", len(CONTEXT) + 2)
    assert torch.equal(*(engine.forward([Chunk(name, [9], 1)]) for name in ("a", "b")))


def test_an_unknown_session_keeps_nothing(load: Load) -> None:
    with pytest.raises(InternalError, match="x is not admitted"):
        load().keep("x", 0, [])

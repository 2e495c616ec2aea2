"""Rounds of trees through engine and verifier rule give the tokens of plain decoding for any draft.

With deterministic children the output is a function of seed and target, so the two runs agree token by token.
"""

from collections.abc import Callable

import pytest
from torch import Tensor

from specdec.engine import Chunk, NativeEngine
from specdec.rules.draft import Verdict
from specdec.rules.multidraft import Siblings
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.trees.tree import ROOT, Tree, TreeDraft
from specdec.trees.verification import verify_tree

pytestmark = pytest.mark.integration

PROMPT = [(7 + 31 * i * i) % 320 for i in range(13)]
NEW_TOKENS = 30
SHAPES = [Tree((ROOT, ROOT, 0, 1, 1, 2)), Tree((ROOT, 0, ROOT, 1, 3)), Tree((ROOT, ROOT, 1, 2)), Tree()]


class Run:
    """One session that grows by rounds."""

    def __init__(self, engine: NativeEngine, name: str, params: SamplingParams) -> None:
        self._engine, self._name, self._params = engine, name, params
        self.output: list[int] = []
        self.kept = 0
        assert engine.admit(name, 100)

    def round(self, draft: TreeDraft) -> None:
        base = self._engine.length(self._name)
        committed = PROMPT + self.output
        pending = committed[base:]
        parents = draft.tree.after(len(pending)).parents
        logits = self._engine.forward([Chunk(self._name, [*pending, *draft.tokens], len(draft.tokens) + 1, parents)])
        verdict = self._judge(logits, draft, len(committed))
        self._engine.keep(self._name, base, [*range(len(pending)), *(len(pending) + node for node in verdict.path)])
        self.output += verdict.tokens
        self.kept += len(verdict.path)

    def _judge(self, logits: Tensor, draft: TreeDraft, position: int) -> Verdict:
        rows = len(draft.tokens) + 1
        p = probabilities(logits, [self._params] * rows, [History()] * rows)
        return verify_tree(Siblings.DETERMINISTIC, p, [draft], [5], [position])[0]


def guess(answer: list[int], tree: Tree, turn: int) -> TreeDraft:
    """Return a draft in which at most one of each set of siblings is right; which one depends on `turn`."""
    tokens = []
    for node, depth in enumerate(tree.depths):
        right = answer[depth] if depth < len(answer) else 0
        off = (node + turn) % 3 if tree.parents[node] == ROOT else (node + turn) % 2
        tokens.append((right + off) % 320)
    return TreeDraft(tree, tuple(tokens))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids="T={}".format)
def test_rounds_of_trees_give_the_tokens_of_plain_decoding(
    architecture: str, temperature: float, load: Callable[..., NativeEngine]
) -> None:
    engine, params = load(architecture), SamplingParams(temperature=temperature)
    plain, trees = (Run(engine, name, params) for name in ("plain", "trees"))
    while len(plain.output) < NEW_TOKENS + 5:
        plain.round(TreeDraft())
    turn = 0
    while len(trees.output) < NEW_TOKENS:
        trees.round(guess(plain.output[len(trees.output) :], SHAPES[turn % len(SHAPES)], turn))
        turn += 1
    assert trees.output[:NEW_TOKENS] == plain.output[:NEW_TOKENS]
    assert trees.kept >= 5
    assert turn < NEW_TOKENS

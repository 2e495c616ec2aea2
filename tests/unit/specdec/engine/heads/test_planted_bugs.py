"""Planted bugs of a head's states and ids change its drafts, so that the comparison with a plain head fails."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.decoder import Decoder
from specdec.engine.heads import checkpoint
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.engine.heads.headed import HeadedEngine
from specdec.engine.heads.pending import PendingStates
from specdec.engine.heads.sequences import HeadSequences
from tests.support.tiny_models import make_tiny_model
from tests.unit.specdec.engine.heads.head_scene import TOKENS, Scene, close, states_of


def of_another_row(patch: pytest.MonkeyPatch) -> None:
    """Give two sequences of a pass each other's states."""
    forward = HeadedEngine.forward

    def swapped(self: HeadedEngine, chunks: Sequence[Chunk]) -> Tensor:
        logits = forward(self, chunks)
        first, second = (self.head._pending[name]._parts for name in ("a", "b"))
        first[-1], second[-1] = second[-1], first[-1]
        return logits

    patch.setattr(HeadedEngine, "forward", swapped)


def of_a_rejected_position(patch: pytest.MonkeyPatch) -> None:
    """Keep the states of the last tokens of a pass, which were rejected."""

    def truncate(self: PendingStates, length: int) -> None:
        kept = length - self.start
        self._parts = [self._joined()[-kept:]]
        del self.tokens[kept:]

    patch.setattr(PendingStates, "truncate", truncate)


def off_by_one_layer(patch: pytest.MonkeyPatch) -> None:
    """Read the states that leave the layers."""
    tap = Decoder.tap
    patch.setattr(Decoder, "tap", lambda self, layers: tap(self, [layer + 1 for layer in layers]))


def stale_after_preemption(patch: pytest.MonkeyPatch) -> None:
    """Keep the states of a preempted sequence, and go on with them when it comes back."""

    def release(self: HeadedEngine, session: str) -> None:
        self.head._kv.close(session)
        self.target.release(session)

    def follow(self: HeadedEngine, session: str, limit: int, tokens: Sequence[int], domain: str = "") -> None:
        assert self.head._kv.open(session, limit, tokens, domain, self.target.length(session))
        self.head._pending.setdefault(session, PendingStates(self.target.length(session)))

    patch.setattr(HeadedEngine, "release", release)
    patch.setattr(HeadedEngine, "follow", follow)


def speculative_slots_stay(patch: pytest.MonkeyPatch) -> None:
    """Keep the slots of drafts, with the head's own states."""
    patch.setattr(HeadSequences, "finish", lambda self, sessions: None)


def absolute_ids(patch: pytest.MonkeyPatch) -> None:
    """Read d2t as ids, not as differences."""
    found = checkpoint._draft_ids
    patch.setattr(checkpoint, "_draft_ids", lambda *given: found(*given) - torch.arange(100))


def all_ids(patch: pytest.MonkeyPatch) -> None:
    """Let the head draft ids that it does not know."""
    logits = Eagle3Head.logits
    patch.setattr(Eagle3Head, "logits", lambda *given: logits(*given).nan_to_num(neginf=0.0))


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    each.__name__: each
    for each in (
        of_another_row,
        of_a_rejected_position,
        off_by_one_layer,
        stale_after_preemption,
        speculative_slots_stay,
        absolute_ids,
        all_ids,
    )
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), layers=4)


def check(target: Path, folder: Path) -> None:
    """Compare the drafts of two sequences, after a preemption, a draft and a rejection, with those of a plain head."""
    scene, other, plain = Scene(target, folder), TOKENS[::-1], states_of(target)
    scene.open("a")
    scene.open("b", other)
    scene.compute(("a", TOKENS[:5]), ("b", other[:5]))
    scene.engine.release("a")
    scene.open("a", TOKENS)
    scene.compute(("a", TOKENS[:12]), ("b", other[5:12]))
    scene.draft(["a", "b"], [TOKENS[12], other[12]], [[5, 6, 7], [1, 2, 3]])
    scene.compute(("a", [TOKENS[12], 5, 6, 7]), ("b", [other[12], 1, 2, 3]))
    for name in ("a", "b"):
        scene.engine.truncate(name, 14)
    found = scene.draft(["a", "b"], [200, 201], [[9], [8]])
    for each, tokens, drafts in zip(found, ([*TOKENS[:13], 5, 200], [*other[:13], 1, 201]), ([9], [8]), strict=True):
        close(each, scene.head.drafted(plain(tokens[:14]), tokens, drafts))


def test_the_comparison_holds_without_a_bug(target: Path, tmp_path: Path) -> None:
    check(target, tmp_path)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        check(target, tmp_path)

"""A head drafts from features as it does beside the target, and goes on where features are missing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drafter_service.drafters.fed_head import FedHead
from drafter_service.sessions.drafter import DraftedToken, NoGuess, run_beams
from drafter_service.sessions.session_table import SessionTable
from specdec.engine.heads.pending import PendingStates
from specdec.errors import ModelRefused, TokenizerMismatch
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.sampling.vocabulary import Vocabulary
from specdec.wire.beams import BeamAsk
from specdec.wire.features import Features
from specdec.wire.session import TreePlan
from tests.support.tiny_heads import draft_ids, make_tiny_head
from tests.support.tiny_models import make_tiny_model
from tests.unit.drafter_service.drafters.fed_scene import OPTIONS, OTHERS, TOKENS, FedScene, check


@pytest.fixture
def scene(tmp_path: Path) -> FedScene:
    return FedScene(tmp_path)


def test_drafts_are_those_of_a_plain_head(scene: FedScene) -> None:
    check(scene)
    assert scene.drafter.info.kind == "head"
    assert scene.drafter.info.features == scene.engine.features
    assert not scene.drafter.info.outcomes


def test_a_prompt_is_read_in_pieces(scene: FedScene) -> None:
    scene.open("a", TOKENS[:30], scene.prefill("a", TOKENS[:30]))
    results = [scene.step("a", most=8) for _ in range(4)]
    assert [len(each) for each in results] == [0, 0, 0, 1]
    assert scene.session("a").tokens_from(30) == scene.expected(TOKENS[:30], 1)


def test_a_draft_that_was_not_judged_goes_on_after_the_verdict(scene: FedScene) -> None:
    scene.open("a", TOKENS[:12], scene.prefill("a", TOKENS[:12]))
    ((first, *rest),) = scene.drafts("a")
    scene.compute(("a", [TOKENS[11]]))
    scene.commit("a", 12, [first], scene.taken("a"))
    assert scene.session("a").drafted == 2
    scene.step("a")
    assert scene.session("a").tokens_from(15) == scene.expected([*TOKENS[:12], first], 1, rest)


def test_without_features_there_is_no_draft_until_they_come(scene: FedScene) -> None:
    features = scene.prefill("a", TOKENS[:12])
    scene.open("a", TOKENS[:12], features)
    scene.drafts("a")
    scene.compute(("a", TOKENS[11:13]))
    scene.taken("a")
    scene.commit("a", 12, TOKENS[12:14], None)
    (result,) = scene.step("a")
    assert isinstance(result, NoGuess)
    assert result.lacks_features
    scene.compute(("a", TOKENS[13:16]))
    scene.commit("a", 14, TOKENS[14:17], later := scene.taken("a"))
    assert later is not None
    (result,) = scene.step("a")
    assert isinstance(result, DraftedToken)
    assert scene.fed._kv._first[scene.session("a").key] == later.start  # the head begins anew there


@pytest.mark.parametrize(
    "wrong",
    [
        lambda sound: replace(sound, start=1),
        lambda sound: replace(sound, count=10),
        lambda sound: replace(sound, values=sound.values[:-4]),
        lambda sound: Features.of(0, torch.full((11, 32), torch.nan)),
        lambda sound: sound.since(11),
    ],
)
def test_features_of_other_tokens_or_sizes_are_ignored(wrong: Callable[[Any], Features], scene: FedScene) -> None:
    sound = scene.prefill("a", TOKENS[:12])
    scene.open("a", TOKENS[:12], wrong(sound))
    (result,) = scene.step("a")
    assert isinstance(result, NoGuess)
    assert result.lacks_features


def test_slots_before_a_window_come_from_other_sessions_of_the_domain(scene: FedScene) -> None:
    text = [*TOKENS, *OTHERS]
    scene.open("a", text[:100], features := scene.prefill("a", text[:100]))
    scene.drafts("a")
    assert features is not None
    window = features.since(90)
    scene.open("b", text[:100], window)
    scene.open("c", text[:100], window, cache_salt="other")
    kv = scene.fed._kv
    first = {name: kv._first[scene.session(name).key] for name in "abc"}
    assert first == {"a": 0, "b": 0, "c": 90}
    for _ in range(3):
        scene.step("b", "c")
    assert scene.session("b").tokens_from(100) == scene.session("a").tokens_from(100)


def test_slots_of_drafts_do_not_outlive_their_session(scene: FedScene) -> None:
    scene.open("a", TOKENS[:14], scene.prefill("a", TOKENS[:14]), gamma=5)
    ((*drafts,),) = scene.drafts("a", count=5)
    assert scene.fed.length(scene.session("a").key) == 18  # a whole block of slots, the last of them of drafts
    scene.table.remove_stream(scene.stream)
    text = [*TOKENS[:14], *drafts, *OTHERS[:6]]
    scene.engine.release("a")
    features = scene.prefill("b", text)
    assert features is not None
    scene.open("b", text, features.since(16))
    assert scene.fed._kv._first[scene.session("b").key] == 16


def test_ended_sessions_leave_no_memory(scene: FedScene) -> None:
    check(scene)
    scene.table.remove_stream(scene.stream)
    assert scene.fed.memory.live == 0
    assert not scene.fed._fed


def test_no_id_that_can_be_drafted_ends_the_draft(scene: FedScene) -> None:
    other = next(token for token in range(320) if token not in draft_ids(100, 320).tolist())
    params = SamplingParams(temperature=0.0, allowed_token_ids=(other,))
    scene.open("a", TOKENS[:12], scene.prefill("a", TOKENS[:12]), params=params)
    (result,) = scene.step("a")
    assert isinstance(result, NoGuess)
    assert not result.lacks_features


def test_trees_are_not_drafted(scene: FedScene) -> None:
    scene.open("a", TOKENS[:12], scene.prefill("a", TOKENS[:12]), tree=TreePlan(2, 2), mode=Mode.REJECTION)
    (result,) = scene.step("a")
    assert isinstance(result, NoGuess)


def test_a_head_serves_neither_searches_nor_other_tokenizers(scene: FedScene) -> None:
    ask = BeamAsk(scene.fed.tokenizer_hash, (1, 2), (((3,), 0.0),), 2, 2)
    assert run_beams(scene.drafter.beams(ask, 8)) == ()
    with pytest.raises(TokenizerMismatch, match="head is a draft head"):
        scene.drafter.translated(Vocabulary((b"a",), frozenset()))


def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", layers=3)
    given = {"kv_bytes": 2**20, "threads": 1, **OPTIONS}
    with pytest.raises(ModelRefused, match="layer 3, this target has 3 layers"):
        FedHead.load(make_tiny_head(tmp_path / "deep", taps=(0, 1, 3)), target, **given)
    with pytest.raises(ModelRefused, match="a vocabulary of 400 ids, this target has 320"):
        FedHead.load(make_tiny_head(tmp_path / "wide", vocab=400), target, **given)


def of_another_row(patch: pytest.MonkeyPatch) -> None:
    """Give a session the features of the session that came before it."""
    read, earlier = FedHead.read_features, list[Features]()

    def swapped(self: FedHead, session: object, features: Features, **named: bool) -> None:
        earlier.append(features)
        known = next((each for each in earlier[-2::-1] if each.count == features.count), features)
        read(self, session, replace(features, values=known.values), **named)  # type: ignore[arg-type]

    patch.setattr(FedHead, "read_features", swapped)


def of_a_rejected_position(patch: pytest.MonkeyPatch) -> None:
    """Send the states of the last tokens of a pass, which were rejected."""

    def truncate(self: PendingStates, length: int) -> None:
        kept = length - self.start
        self._parts = [self._joined()[-kept:]]
        del self.tokens[kept:]

    patch.setattr(PendingStates, "truncate", truncate)


def off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Send the state of the token before."""
    take = PendingStates.take
    patch.setattr(PendingStates, "take", lambda self: take(self).roll(1, 0))


def stale_after_reopening(patch: pytest.MonkeyPatch) -> None:
    """Keep the features that were not read when a session is opened again."""
    read = FedHead.read_features
    patch.setattr(FedHead, "read_features", lambda self, *given, opened: read(self, *given, opened=False))


def slots_of_drafts_stay(patch: pytest.MonkeyPatch) -> None:
    """Take the head's own states for the target's."""

    def truncate(self: FedHead, session: str, length: int) -> None:
        self._kv.truncate(session, length - 1)
        fed = self._fed[session]
        self._fed[session] = replace(fed, known=max(fed.known, self._kv.end(session)))

    patch.setattr(FedHead, "truncate", truncate)


def slots_of_other_tokens_stay(patch: pytest.MonkeyPatch) -> None:
    """Keep all slots when a session is opened again with other tokens."""
    patch.setattr(SessionTable, "_truncate", lambda self, session, valid: None)


BUGS = (
    of_another_row,
    of_a_rejected_position,
    off_by_one,
    stale_after_reopening,
    slots_of_drafts_stay,
    slots_of_other_tokens_stay,
)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(
    bug: Callable[[pytest.MonkeyPatch], None], scene: FedScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        check(scene)

"""The drafter's thread: it drafts for all who want, hears a verdict between steps, and survives everyone's errors."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from drafter_service.config import DrafterSettings
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.drafter import Drafter
from drafter_service.sessions.stream import MalformedMessage, Reply
from drafter_service.sessions.worker import Worker
from specdec.errors import ModelRefused
from specdec.rules.params import Mode
from specdec.rules.prefix import PrefixHash
from specdec.serving.settings import ModelSettings
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, DraftEnd, NackReason
from tests.drafter_fakes import OPEN, VOCAB, ListStream, PrefixModel, commit, continued, expected_drafts

SETTINGS = DrafterSettings(model=ModelSettings(path=Path("tiny")), max_sessions=8, chunk_tokens=16, ahead=0)


class Bench:
    """A worker over a PrefixModel, with one stream."""

    def __init__(self, settings: DrafterSettings = SETTINGS) -> None:
        self.model = PrefixModel()
        self.registry = CollectorRegistry()
        self.worker = Worker(self._load, settings, DrafterMetrics(self.registry))
        self.stream = ListStream()

    def start(self) -> None:
        self.worker.start()
        self.worker.loaded.result(timeout=30)
        self.model.passes.clear()

    def close(self) -> None:
        self.worker.stop()
        self.worker.ended.result(timeout=30)

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def _load(self) -> Drafter:
        return ModelDrafter("tiny", self.model, support=8)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.start()
    yield bench
    bench.close()


def _drafted(*, gamma: int = 3, **changes: object) -> list[int]:
    opened = replace(OPEN, **changes)  # type: ignore[arg-type]
    return [token for token, _ in expected_drafts(opened, gamma, support=8)]


def _fenced(draft: DraftTokens, prefix: list[int]) -> bool:
    return (draft.base_len, draft.prefix_hash) == (len(prefix), PrefixHash(prefix).value)


def test_an_opened_session_gets_a_whole_draft_fenced_by_what_it_continues(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    (draft,) = bench.stream.drafts
    assert list(draft.draft.tokens) == _drafted()
    assert len(draft.draft.probs) == 3
    assert _fenced(draft, list(OPEN.tokens))
    assert (draft.session_id, draft.epoch) == ("s", 1)


def test_nobody_is_drafted_for_past_gamma(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    bench.worker.post(bench.stream, [commit(3, *_drafted()[:1], gamma=2)])
    bench.worker.caught_up().result(timeout=30)
    bench.worker.post(bench.stream, [commit(4, *_drafted()[1:2], gamma=2)])
    bench.stream.until(lambda: bench.stream.drafted == 4)
    assert bench.stream.tokens() == _drafted(gamma=4)


def test_a_stream_that_ends_while_it_waits_for_the_worker_does_not_end_it(bench: Bench) -> None:
    waited = bench.worker.caught_up()
    assert waited.cancel() or waited.done()
    for _ in range(20):
        bench.worker.caught_up().cancel()
    bench.worker.caught_up().result(timeout=30)
    assert bench.worker.alive


def test_a_full_acceptance_goes_on_from_the_bonus_token(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    bonus = (_drafted(gamma=4)[3] + 1) % VOCAB
    bench.worker.post(bench.stream, [commit(3, *_drafted(), bonus)])
    bench.stream.until(lambda: bench.stream.drafted == 6)
    after = continued(OPEN, *_drafted(), bonus)
    assert bench.stream.tokens()[3:] == [token for token, _ in expected_drafts(after, 3, support=8)]


def test_everyone_shares_the_same_step_and_a_stream_gets_one_frame_of_it(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="t", tokens=(3, 2, 1))])
    bench.stream.until(lambda: bench.stream.drafted == 6)
    assert [len(replies) for replies in bench.stream.frames] == [2]
    assert [len(chunks) for chunks in bench.model.passes] == [2, 2, 2]


def test_a_verdict_that_comes_during_a_step_cancels_the_rest_of_the_draft(bench: Bench) -> None:
    wrong = (_drafted()[0] + 1) % VOCAB

    def before_pass() -> None:
        if len(bench.model.passes) == 1:
            bench.worker.post(bench.stream, [commit(3, wrong)])

    bench.model.before_pass = before_pass
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    after = continued(OPEN, wrong)
    assert bench.stream.tokens() == [token for token, _ in expected_drafts(after, 3, support=8)]
    assert _fenced(bench.stream.drafts[0], [*OPEN.tokens, wrong])


def test_a_verdict_that_the_chain_foresaw_gets_at_once_what_is_left_of_it() -> None:
    bench = Bench(SETTINGS.model_copy(update={"ahead": 4}))
    guessed = _drafted(gamma=5)

    def before_pass() -> None:
        if len(bench.model.passes) == 4:
            bench.worker.post(bench.stream, [commit(3, *guessed[:3])])

    bench.start()
    bench.model.before_pass = before_pass
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted >= 5)
    bench.close()
    assert [draft.draft.tokens for draft in bench.stream.drafts[:2]] == [tuple(guessed[:3]), tuple(guessed[3:])]
    assert _fenced(bench.stream.drafts[1], [*OPEN.tokens, *guessed[:3]])


def test_drafting_ahead_survives_the_verdict_it_guessed() -> None:
    bench = Bench(SETTINGS.model_copy(update={"ahead": 2}))
    bench.start()
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 5)
    guessed = _drafted(gamma=8)
    assert bench.stream.tokens() == guessed[:5]
    bench.worker.post(bench.stream, [commit(3, *guessed[:4], gamma=2)])
    bench.stream.until(lambda: bench.stream.drafted == 8)
    assert bench.stream.tokens() == guessed
    bench.close()


def test_a_long_prompt_does_not_stop_a_session_that_drafts(bench: Bench) -> None:
    bench.worker.post(bench.stream, [replace(OPEN, session_id="long", tokens=(5,) * 50, max_len=60), OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 6)
    first_of_long = next(row for row, draft in enumerate(bench.stream.drafts) if draft.session_id == "long")
    assert first_of_long == 1
    assert bench.stream.tokens("long") == _drafted(tokens=(5,) * 50, max_len=60)
    assert max(sum(len(chunk.tokens) for chunk in chunks) for chunks in bench.model.passes) <= 17


def test_the_end_of_the_room_is_said_once(bench: Bench) -> None:
    bench.worker.post(bench.stream, [replace(OPEN, max_len=5), replace(OPEN, session_id="t", max_len=3)])
    bench.stream.until(lambda: len(bench.stream.ends) == 2)
    assert bench.stream.ends == [DraftEnd("t", 1, 3), DraftEnd("s", 1, 5)]
    assert bench.stream.tokens() == _drafted()[:2]


def test_a_malformed_message_reaches_its_own_session_only(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="bad"), MalformedMessage("bad", 1, "what")])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert [(nack.session_id, nack.reason) for nack in bench.stream.nacks] == [("bad", NackReason.MALFORMED)]
    assert bench.stream.tokens() == _drafted()
    assert bench.count("specdec_drafter_nacks_total", reason="malformed") == 1


def test_a_session_that_fails_is_put_away_and_the_others_go_on(bench: Bench) -> None:
    bench.model.spoiled.add("1/bad")
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="bad")])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert [(nack.session_id, nack.reason) for nack in bench.stream.nacks] == [("bad", NackReason.INTERNAL)]
    assert bench.stream.tokens() == _drafted()
    assert list(bench.model.kv) == ["1/s"]


def test_a_pass_that_fails_refuses_its_sessions_and_the_thread_goes_on(bench: Bench) -> None:
    def out_of_memory() -> None:
        raise MemoryError("no memory")

    bench.model.before_pass = out_of_memory
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="t")])
    bench.stream.until(lambda: len(bench.stream.nacks) == 2)
    assert {(nack.session_id, nack.reason) for nack in bench.stream.nacks} == {
        ("s", NackReason.INTERNAL),
        ("t", NackReason.INTERNAL),
    }
    bench.model.before_pass = lambda: None
    bench.worker.post(bench.stream, [replace(OPEN, epoch=2)])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert bench.stream.tokens() == _drafted()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_failure_behind_drawn_drafts_ends_the_draft_and_drops_none_of_them(ahead: int) -> None:
    bench = Bench(SETTINGS.model_copy(update={"ahead": ahead}))
    drawn = 2 if not ahead else 4

    def spoil() -> None:
        if len(bench.model.passes) == drawn:
            bench.model.spoiled.add("1/s")

    bench.start()
    bench.model.before_pass = spoil
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == drawn)
    guessed = _drafted(gamma=5)
    assert bench.stream.tokens() == guessed[:drawn]
    assert bench.stream.ends == ([DraftEnd("s", 1, 5)] if not ahead else [])
    bench.model.spoiled.clear()
    bench.model.before_pass = lambda: None
    bench.worker.post(bench.stream, [commit(3, *guessed[:1], gamma=3)])
    bench.stream.until(lambda: bench.stream.drafted > 3)
    assert bench.stream.tokens() == guessed[: bench.stream.drafted]
    assert not bench.stream.nacks
    bench.close()


def test_a_failure_without_any_draft_behind_the_commit_is_a_refusal(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    bench.model.spoiled.add("1/s")
    bench.worker.post(bench.stream, [commit(3, *_drafted())])
    bench.stream.until(lambda: bool(bench.stream.nacks))
    assert bench.stream.nacks[0].reason is NackReason.INTERNAL
    assert bench.stream.drafted == 3


def test_a_message_that_breaks_the_drafter_is_refused_alone(bench: Bench) -> None:
    bench.model.kv["1/taken"] = []  # so that admitting it is an error of the model's own
    bench.worker.post(bench.stream, [replace(OPEN, session_id="taken"), OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert [(nack.session_id, nack.reason) for nack in bench.stream.nacks] == [("taken", NackReason.INTERNAL)]


def test_a_stream_that_is_full_is_not_drafted_for_until_it_has_room(bench: Bench) -> None:
    slow, quick = ListStream(2), bench.stream
    slow.full = True
    bench.worker.post(slow, [OPEN])
    bench.worker.post(quick, [OPEN])
    quick.until(lambda: quick.drafted == 3)
    assert not slow.frames
    slow.full = False
    bench.worker.wake()
    slow.until(lambda: slow.drafted == 3)


def test_a_stream_that_ends_frees_everything_and_hears_no_more(bench: Bench) -> None:
    free = bench.model.free
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="t")])
    bench.worker.end_stream(bench.stream)
    bench.worker.end_stream(bench.stream)
    bench.worker.caught_up().result(timeout=30)
    heard = len(bench.stream.frames)
    other = ListStream(2)
    bench.worker.post(other, [OPEN])
    other.until(lambda: other.drafted == 3)
    assert bench.model.free == free - len(OPEN.tokens) - 2
    assert len(bench.stream.frames) == heard


def test_a_stream_that_ended_is_not_even_refused(bench: Bench) -> None:
    other = ListStream(2)

    def before_pass() -> None:  # on the worker's thread, so that it takes both in one turn
        bench.worker.post(other, [MalformedMessage("bad", 1, "what")])
        bench.worker.end_stream(other)

    bench.model.before_pass = before_pass
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    bench.worker.caught_up().result(timeout=30)
    assert not other.frames


def test_a_refusal_does_not_wait_for_the_next_step(bench: Bench) -> None:
    refused_before_pass: list[bool] = []
    bench.model.before_pass = lambda: refused_before_pass.append(bool(bench.stream.nacks))
    bench.worker.post(bench.stream, [OPEN, MalformedMessage("bad", 1, "what")])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert refused_before_pass == [True, True, True]


def test_a_worker_that_dies_says_of_what() -> None:
    class Gone(ListStream):
        def deliver(self, replies: Sequence[Reply]) -> None:
            raise ConnectionError("gone")

    bench = Bench()
    bench.start()
    bench.worker.post(Gone(), [OPEN])
    with pytest.raises(ConnectionError, match="gone"):
        bench.worker.ended.result(timeout=30)
    assert not bench.worker.alive


def test_load_and_metrics_say_what_happened(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="t", mode=Mode.COUPLED)])
    bench.stream.until(lambda: bench.stream.drafted == 6)
    bench.worker.post(bench.stream, [Close("t", 1)])
    for _ in range(2):  # the second is taken after the numbers of the first turn are out
        bench.worker.caught_up().result(timeout=30)
    assert bench.count("specdec_drafter_tokens_total") == 6
    assert bench.count("specdec_drafter_step_seconds_count") == 3
    assert bench.count("specdec_drafter_batch_size_sum") == 6
    assert bench.count("specdec_drafter_computed_tokens_total") == 2 * (3 + 1 + 1)
    assert bench.worker.load.sessions == 1
    assert bench.worker.load.step_seconds > 0


def test_a_model_that_cannot_be_loaded_is_the_error_of_who_waits_for_it() -> None:
    def refuse() -> Drafter:
        raise ModelRefused("no such folder")

    worker = Worker(refuse, SETTINGS, DrafterMetrics(CollectorRegistry()))
    worker.start()
    with pytest.raises(ModelRefused, match="no such folder"):
        worker.loaded.result(timeout=30)
    worker.ended.result(timeout=30)

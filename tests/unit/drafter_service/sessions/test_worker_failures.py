"""The drafter's thread survives all errors, and each error is sent to its own session only."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.drafter import Drafter
from drafter_service.sessions.stream import MalformedMessage, Reply
from drafter_service.sessions.worker import Worker
from specdec.errors import ModelRefused
from specdec.rules.prefix import PrefixHash
from specdec.wire.session import DraftEnd, NackReason
from tests.support.drafter_fakes import OPEN, ListStream, commit
from tests.unit.drafter_service.sessions.worker_bench import SETTINGS, Bench, drafted


def test_a_malformed_message_reaches_its_own_session_only(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="bad"), MalformedMessage("bad", 1, "what")])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert [(nack.session_id, nack.reason) for nack in bench.stream.nacks] == [("bad", NackReason.MALFORMED)]
    assert bench.stream.tokens() == drafted()
    assert bench.count("specdec_drafter_nacks_total", reason="malformed") == 1


def test_a_refusal_is_logged_with_the_request_id(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.model.spoiled.add("1/bad")
    bench.worker.post(bench.stream, [replace(OPEN, session_id="bad", request_id="r-1")])
    bench.stream.until(lambda: bool(bench.stream.nacks))
    logged = next(line for line in capsys.readouterr().out.splitlines() if "session_refused" in line)
    assert "request_id" in logged
    assert "r-1" in logged


def test_a_session_that_fails_is_put_away_and_the_others_go_on(bench: Bench) -> None:
    bench.model.spoiled.add("1/bad")
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="bad")])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert [(nack.session_id, nack.reason) for nack in bench.stream.nacks] == [("bad", NackReason.INTERNAL)]
    assert bench.stream.tokens() == drafted()
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
    assert bench.stream.tokens() == drafted()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_failure_after_drawn_drafts_ends_the_draft_and_drops_none(ahead: int) -> None:
    bench = Bench(SETTINGS.model_copy(update={"ahead": ahead}))
    drawn = 2 if not ahead else 4

    def spoil() -> None:
        if len(bench.model.passes) == drawn:
            bench.model.spoiled.add("1/s")

    bench.start()
    bench.model.before_pass = spoil
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == drawn)
    guessed = drafted(gamma=5)
    assert bench.stream.tokens() == guessed[:drawn]
    end = DraftEnd("s", 1, 5, PrefixHash((*OPEN.tokens, *guessed[:2])).value)
    assert bench.stream.ends == ([end] if not ahead else [])
    bench.model.spoiled.clear()
    bench.model.before_pass = lambda: None
    bench.worker.post(bench.stream, [commit(3, *guessed[:1], gamma=3)])
    bench.stream.until(lambda: bench.stream.drafted > 3)
    assert bench.stream.tokens() == guessed[: bench.stream.drafted]
    assert not bench.stream.nacks
    bench.close()


def test_a_failure_without_any_draft_after_the_commit_is_a_refusal(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    bench.model.spoiled.add("1/s")
    bench.worker.post(bench.stream, [commit(3, *drafted())])
    bench.stream.until(lambda: bool(bench.stream.nacks))
    assert bench.stream.nacks[0].reason is NackReason.INTERNAL
    assert bench.stream.drafted == 3


def test_a_message_that_breaks_the_drafter_is_refused_alone(bench: Bench) -> None:
    bench.model.kv["1/taken"] = []  # so that the model itself fails to admit it
    bench.worker.post(bench.stream, [replace(OPEN, session_id="taken"), OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert [(nack.session_id, nack.reason) for nack in bench.stream.nacks] == [("taken", NackReason.INTERNAL)]


def test_a_stream_that_ended_is_not_even_refused(bench: Bench) -> None:
    other = ListStream(2)

    def before_pass() -> None:  # on the worker's thread, so that one iteration handles both
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


def test_a_model_that_cannot_be_loaded_is_the_error_of_who_waits_for_it() -> None:
    def refuse() -> Drafter:
        raise ModelRefused("no such folder")

    worker = Worker(refuse, SETTINGS, DrafterMetrics(CollectorRegistry()))
    worker.start()
    with pytest.raises(ModelRefused, match="no such folder"):
        worker.loaded.result(timeout=30)
    worker.ended.result(timeout=30)

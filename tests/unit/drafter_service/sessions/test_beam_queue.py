"""Beams are proposed one pass at a time, and sessions are drafted for in between."""

import threading
from collections.abc import Iterator

import pytest

from specdec.errors import FieldInvalid
from specdec.wire.beams import BeamAsk, ProposedBeam
from tests.support.drafter_fakes import OPEN, VOCAB, logits_after
from tests.unit.drafter_service.sessions.worker_bench import SETTINGS, Bench, drafted

PROMPT = tuple(index % VOCAB for index in range(50))
ASK = BeamAsk("c0ffee", PROMPT, (((), 0.0),), width=3, steps=1)
BEAM = "beam 0"


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(SETTINGS.model_copy(update={"chunk_tokens": 8}))
    bench.start()
    yield bench
    bench.close()


def expected() -> list[ProposedBeam]:
    best = logits_after(PROMPT).topk(3).indices.tolist()
    return [ProposedBeam(0, token) for token in sorted(best)]


def test_sessions_get_passes_between_the_chunks_of_a_long_prompt(bench: Bench) -> None:
    def before_pass() -> None:
        if not bench.model.passes:
            bench.worker.post(bench.stream, [OPEN])

    bench.model.before_pass = before_pass
    assert bench.worker.beams(ASK).result(timeout=30) == expected()
    bench.stream.until(lambda: bench.stream.drafted == 3)
    assert bench.stream.tokens() == drafted()
    ours = [chunk for chunks in bench.model.passes for chunk in chunks if chunk.session == BEAM]
    assert [len(chunk.tokens) for chunk in ours] == [8, 8, 8, 8, 8, 8, 1, 1]
    order = [chunks[0].session == BEAM for chunks in bench.model.passes]
    assert order[:7] == [True, False, True, False, True, False, True]
    assert BEAM not in bench.model.kv
    assert bench.count("specdec_drafter_beams_total") == 3


def test_a_proposal_that_nobody_waits_for_is_dropped_with_its_memory(bench: Bench) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def before_pass() -> None:
        begun.set()
        cancelled.wait(timeout=30)

    bench.model.before_pass = before_pass
    late = bench.worker.beams(ASK)
    assert begun.wait(timeout=30)
    late.cancel()
    cancelled.set()
    assert bench.worker.beams(ASK).result(timeout=30) == expected()
    assert late.cancelled()
    assert BEAM not in bench.model.kv
    assert bench.worker.alive


def test_searches_take_turns(bench: Bench) -> None:
    asks = [bench.worker.beams(ASK) for _ in range(3)]
    assert [each.result(timeout=30) for each in asks] == [expected()] * 3


def test_a_pass_that_fails_fails_its_proposal_alone(bench: Bench) -> None:
    def before_pass() -> None:
        bench.model.before_pass = lambda: None
        raise RuntimeError("no")

    bench.model.before_pass = before_pass
    with pytest.raises(RuntimeError, match="no"):
        bench.worker.beams(ASK).result(timeout=30)
    assert bench.worker.beams(ASK).result(timeout=30) == expected()


def test_another_tokenizer_and_unknown_ids_get_no_beams(bench: Bench) -> None:
    assert bench.worker.beams(BeamAsk("other", PROMPT, (((), 0.0),), 3, 1)).result(timeout=30) == ()
    with pytest.raises(FieldInvalid, match="vocabulary"):
        bench.worker.beams(BeamAsk("c0ffee", (VOCAB,), (((), 0.0),), 3, 1)).result(timeout=30)
    bench.worker.beams(BeamAsk("other", PROMPT, (((), 0.0),), 3, 1)).cancel()
    assert bench.worker.beams(ASK).result(timeout=30) == expected()

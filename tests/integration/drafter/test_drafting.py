"""Drafts over a real stream: the distributions, the fences, and the effect of verdicts."""

import pytest

from specdec.engine import NativeEngine
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.draft import DraftTokens
from specdec.wire.tokens import tokens_to_bytes
from tests.integration.drafter.reference_drafts import received, reference
from tests.integration.drafter.served_drafter import Serve, Service
from tests.integration.drafter.verifier_by_hand import PROMPT, opening

pytestmark = pytest.mark.integration

PENALISED = SamplingParams(seed=4, temperature=0.8, top_p=0.9, presence_penalty=1.0, repetition_penalty=1.2)
KINDS = [
    (Mode.REJECTION, SamplingParams(seed=1)),
    (Mode.BLOCK, PENALISED),
    (Mode.COUPLED, SamplingParams(seed=2)),
    (Mode.REJECTION, SamplingParams(temperature=0.0)),
]


def _tokens(engine: NativeEngine, count: int, tokens: tuple[int, ...] = PROMPT) -> list[int]:
    return [token for token, _, _ in reference(engine, count, tokens)]


def _another(token: int) -> int:
    return 1 if token != 1 else 2


@pytest.mark.parametrize(("mode", "params"), KINDS)
async def test_drafts_are_the_engines_own_draws(
    service: Service, engine: NativeEngine, mode: Mode, params: SamplingParams
) -> None:
    async with service.verifier() as verifier:
        await verifier.open(opening(mode=mode, params=params))
        chunks = await verifier.drafts("s", 4)
    expected = reference(engine, 4, mode=mode, params=params)
    assert received(chunks) == expected
    sizes = {len(ids) for _, ids, _ in expected}
    assert sizes == ({0} if mode is Mode.COUPLED else {1} if params.temperature == 0 else sizes)
    _check_fences(chunks, list(PROMPT))


def _check_fences(chunks: list[DraftTokens], prefix: list[int]) -> None:
    for chunk in chunks:
        assert (chunk.base_len, chunk.prefix_hash) == (len(prefix), PrefixHash(prefix).value)
        prefix = [*prefix, *chunk.draft.tokens]


@pytest.mark.parametrize(("mode", "params"), KINDS)
async def test_guesses_change_no_draft(serve: Serve, engine: NativeEngine, mode: Mode, params: SamplingParams) -> None:
    prompt = PROMPT * 3
    async with serve(local=["prompt_lookup", "suffix"]) as guessing, guessing.verifier() as verifier:
        await verifier.open(opening(tokens=prompt, mode=mode, params=params))
        chunks = await verifier.drafts("s", 4)
        computed = await guessing.metric("specdec_drafter_guesses_total")
    assert received(chunks) == reference(engine, 4, prompt, mode=mode, params=params)
    assert computed > 0


async def test_a_rejection_starts_over_from_the_recovered_token(service: Service, engine: NativeEngine) -> None:
    first = _tokens(engine, 4)
    recovered = _another(first[2])
    async with service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.drafts("s", 4)
        await verifier.commit("s", len(PROMPT), [*first[:2], recovered])
        chunks = await verifier.drafts("s", 4, skip=4)
    committed = (*PROMPT, *first[:2], recovered)
    assert received(chunks) == reference(engine, 4, committed)
    _check_fences(chunks, list(committed))


async def test_a_full_acceptance_continues_from_the_bonus_token(service: Service, engine: NativeEngine) -> None:
    first = _tokens(engine, 5)
    bonus = _another(first[4])
    async with service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.drafts("s", 4)
        await verifier.commit("s", len(PROMPT), [*first[:4], bonus])
        chunks = await verifier.drafts("s", 4, skip=4)
    assert received(chunks) == reference(engine, 4, (*PROMPT, *first[:4], bonus))


async def test_drafting_ahead_is_fenced_by_the_guess_it_makes(serve: Serve, engine: NativeEngine) -> None:
    guessed = _tokens(engine, 12)
    async with serve(ahead=3) as service, service.verifier() as verifier:
        await verifier.open(opening())
        chunks = await verifier.drafts("s", 7)
        _check_fences(chunks, list(PROMPT))
        await verifier.commit("s", len(PROMPT), guessed[:5])
        chunks = await verifier.drafts("s", 12)
    assert [token for chunk in chunks for token in chunk.draft.tokens] == guessed
    _check_fences(chunks, list(PROMPT))


async def test_drafting_ahead_on_a_wrong_guess_is_dropped(serve: Serve, engine: NativeEngine) -> None:
    guessed = _tokens(engine, 7)
    bonus = _another(guessed[4])
    async with serve(ahead=3) as service, service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.drafts("s", 7)
        await verifier.commit("s", len(PROMPT), [*guessed[:4], bonus])
        chunks = await verifier.drafts("s", 4, skip=7)
    committed = (*PROMPT, *guessed[:4], bonus)
    assert received(chunks) == reference(engine, 4, committed)
    _check_fences(chunks, list(committed))


async def test_a_session_drafts_the_same_among_others(service: Service, engine: NativeEngine) -> None:
    opens = [opening(f"s{n}", mode=mode, params=params) for n, (mode, params) in enumerate(KINDS)]
    async with service.verifier() as verifier:
        await verifier.open(*opens)
        for number, (mode, params) in enumerate(KINDS):
            expected = reference(engine, 4, mode=mode, params=params)
            assert received(await verifier.drafts(f"s{number}", 4)) == expected


async def test_a_long_prompt_is_drafted_for_after_its_parts(serve: Serve, engine: NativeEngine) -> None:
    prompt = [3 + (7 * index) % 200 for index in range(90)]
    async with serve(chunk_tokens=16) as service, service.verifier() as verifier:
        await verifier.open(opening("long", prompt, max_len=120), opening())
        assert received(await verifier.drafts("long", 4)) == reference(engine, 4, prompt)
        assert received(await verifier.drafts("s", 4)) == reference(engine, 4)


async def test_a_session_at_its_end_is_told_so(service: Service) -> None:
    async with service.verifier() as verifier:
        await verifier.open(opening(max_len=len(PROMPT) + 2))
        await verifier.until(lambda: any(frame.ends for frame in verifier.frames))
        (end,) = [end for frame in verifier.frames for end in frame.ends]
        assert (end.session_id, end.epoch, end.base_len) == ("s", 1, len(PROMPT) + 2)
        assert [len(chunk.draft.tokens) for chunk in await verifier.drafts("s", 2)] == [2]


async def test_a_malformed_session_disturbs_no_other(service: Service, engine: NativeEngine) -> None:
    broken = opening("broken")
    broken.tokens = b"\x01\x02\x03"
    outside = opening("outside", tokens=[engine.vocab_size])
    nonsense = opening("nonsense")
    nonsense.sampling.top_p = -1.0
    unset = opening("unset")
    unset.mode = 0
    async with service.verifier() as verifier:
        await verifier.open(opening(), broken, outside, nonsense, unset)
        assert received(await verifier.drafts("s", 4)) == reference(engine, 4)
        await verifier.commit("s", len(PROMPT), [engine.vocab_size])
        await verifier.until(lambda: len(verifier.nacks) == 5)
    malformed = pb.Nack.REASON_MALFORMED
    assert verifier.nacks == [(name, malformed) for name in ("broken", "outside", "nonsense", "unset", "s")]


async def test_a_gap_and_a_session_unknown_are_refused_by_name(service: Service) -> None:
    async with service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.commit("s", len(PROMPT) + 1, [1])
        await verifier.commit("never", 0, [1])
        await verifier.until(lambda: len(verifier.nacks) == 2)
    assert verifier.nacks == [("s", pb.Nack.REASON_STALE), ("never", pb.Nack.REASON_UNKNOWN)]


async def test_no_room_is_said_and_the_others_keep_theirs(serve: Serve, engine: NativeEngine) -> None:
    async with serve(max_sessions=1) as service, service.verifier() as verifier:
        await verifier.open(opening(), opening("t"))
        assert received(await verifier.drafts("s", 4)) == reference(engine, 4)
    assert verifier.nacks == [("t", pb.Nack.REASON_OVERLOADED)]


async def test_a_session_sent_again_is_idempotent(service: Service, engine: NativeEngine) -> None:
    first = _tokens(engine, 4)
    again = pb.Commit(
        session_id="s", epoch=1, base_len=len(PROMPT), tokens=tokens_to_bytes([_another(first[0])]), gamma=4
    )
    async with service.verifier() as verifier:
        await verifier.open(opening())
        await verifier.drafts("s", 4)
        await verifier.send(pb.DraftRequest(commits=[again, again]))
        chunks = await verifier.drafts("s", 4, skip=4)
    assert received(chunks) == reference(engine, 4, (*PROMPT, _another(first[0])))
    assert not verifier.nacks

"""Chains that a drafter pushes over gRPC for the possible outcomes of a verdict."""

import pytest

from specdec.engine import NativeEngine
from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode
from specdec.wire.draft import DraftTokens, draft_from_pb
from tests.integration.drafter.reference_drafts import received, reference
from tests.integration.drafter.served_drafter import Serve, Service
from tests.integration.drafter.verifier_by_hand import PROMPT, Verifier, opening
from verifier_service.drafts.draft_buffer import DraftBuffer

pytestmark = pytest.mark.integration

_GAMMA, _OUTCOMES = 3, 6


def _chunks(verifier: Verifier) -> list[DraftTokens]:
    return [draft_from_pb(draft) for frame in verifier.frames for draft in frame.drafts]


def _prefix(chunk: DraftTokens, drafts: tuple[int, ...], vocab: int) -> tuple[int, ...]:
    """Return the tokens that a pushed chain continues, found by its fence."""
    accepted = drafts[: chunk.base_len - len(PROMPT) - 1]
    guesses = ((*PROMPT, *accepted, token) for token in range(vocab))
    return next(each for each in guesses if PrefixHash(each).value == chunk.prefix_hash)


async def test_a_handshake_says_how_many_outcomes_are_pushed(service: Service, serve: Serve) -> None:
    async with service.stream() as verifier:
        assert (await verifier.hello()).outcomes == 16
    async with serve(kind="ngram") as texts, texts.stream() as verifier:
        assert (await verifier.hello()).outcomes == 0


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
async def test_a_pushed_chain_is_what_would_be_drafted_after_its_outcome(
    serve: Serve, engine: NativeEngine, mode: Mode
) -> None:
    async with serve(ahead=1) as service, service.verifier() as verifier:
        await verifier.open(opening(mode=mode, gamma=_GAMMA, outcomes=_OUTCOMES))
        await verifier.until(lambda: len(_chunks(verifier)) >= _OUTCOMES + 1)
        first, *others = _chunks(verifier)
        drafts = first.draft.tokens
        pushed = [chunk for chunk in others if chunk.base_len != len(PROMPT) + _GAMMA]
        assert len(pushed) >= _OUTCOMES - 1
        prefixes = [_prefix(chunk, drafts, engine.vocab_size) for chunk in pushed]
        for chunk, prefix in zip(pushed, prefixes, strict=True):
            assert received([chunk]) == reference(engine, _GAMMA, prefix, mode)
        buffer = DraftBuffer(PROMPT, limit=16)
        for chunk in (first, *pushed):
            buffer.add(chunk)
        committed = prefixes[0][len(PROMPT) :]
        assert buffer.advance(committed, judged=_GAMMA)
        assert buffer.take(_GAMMA).tokens == pushed[0].draft.tokens
        seen = len(_chunks(verifier))
        await verifier.commit("s", len(PROMPT), list(committed), gamma=_GAMMA)
        await verifier.until(lambda: len(_chunks(verifier)) >= seen + _OUTCOMES)
        bases = {chunk.base_len for chunk in _chunks(verifier)[seen:]}
        assert len(PROMPT) + len(committed) not in bases

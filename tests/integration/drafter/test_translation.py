"""Handshakes between a verifier's own client and a drafter with a tokenizer other than the target's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from drafter_service.app import drafter
from drafter_service.config import DrafterSettings
from specdec.engine import load_tokenizer_json
from specdec.engine.byte_tokenizer import ByteTokenizer
from specdec.errors import DrafterMismatch, TokenizerMismatch
from specdec.sampling.vocabulary import Vocabulary
from tests.conformance.small_pair import VOCAB_SIZE, small
from verifier_service.drafts.client import DrafterClient, Identity
from verifier_service.drafts.link import DrafterLink
from verifier_service.metrics import VerifierMetrics

pytestmark = pytest.mark.integration

NOTHING_SHARED = Vocabulary((b"\xfe", b"\xfd"), frozenset())


def target() -> Vocabulary:
    content = load_tokenizer_json(small().target)
    assert content is not None
    return ByteTokenizer(content, VOCAB_SIZE, [0]).vocabulary


class Verifier:
    """A client that makes the handshake with one drafter."""

    def __init__(self, address: str) -> None:
        self.registry = CollectorRegistry()
        self.link = DrafterLink(address, probe=1.0, metrics=VerifierMetrics(self.registry))

    async def greet(self, vocabulary: Vocabulary | None = None, least_overlap: float = 0.2) -> None:
        identity = Identity("v", "the target's", vocabulary=vocabulary, least_overlap=least_overlap)
        async with DrafterClient(self.link, identity).greeted():
            pass


@asynccontextmanager
async def verifier(**settings: object) -> AsyncIterator[Verifier]:
    """A verifier without a target, and a drafter for it."""
    model = {"path": small().stranger, "device": "cpu"}
    given = {"model": model, "address": "127.0.0.1:0", "http": "127.0.0.1:0", "kv_bytes": 2**22, **settings}
    async with drafter(DrafterSettings.load(None, given)) as running:
        await running.ready()
        yield Verifier(running.address)


async def test_translation_is_asked_for_and_its_overlap_shown() -> None:
    async with verifier() as asking:
        with pytest.raises(DrafterMismatch, match="drafter_vocabulary: translate"):
            await asking.greet()
        with pytest.raises(TokenizerMismatch, match=r"50\.0% of the smaller vocabulary.*60\.0%"):
            await asking.greet(target(), least_overlap=0.6)
        with pytest.raises(DrafterMismatch, match="no token in common"):
            await asking.greet(NOTHING_SHARED, least_overlap=0.0)
        await asking.greet(target())
        assert asking.link.drafter_state.overlap == 0.5
        shown = asking.registry.get_sample_value("specdec_drafter_overlap_ratio", {"address": asking.link.address})
        assert shown == 0.5


@pytest.mark.parametrize(("kind", "refusal"), [("random", "has no bytes"), ("ngram", "kind ngram")])
async def test_a_drafter_that_cannot_translate_says_so(kind: str, refusal: str) -> None:
    async with verifier(kind=kind) as asking:
        with pytest.raises(DrafterMismatch, match=refusal):
            await asking.greet(target())


async def test_a_hybrid_translates_too() -> None:
    async with verifier(kind="hybrid") as asking:
        await asking.greet(target())
        assert (asking.link.kind, asking.link.overlap) == ("hybrid", 0.5)

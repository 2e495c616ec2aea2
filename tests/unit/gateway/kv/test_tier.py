"""Blocks have the fingerprint and the length that the verifier exchanges."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from gateway.kv.store import Block, SequenceBlocks
from gateway.kv.tier import KvTier, KvVerifierClient
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.access import UNGUARDED
from specdec.wire.generation import GenerationCall, VerifierInfo

TOKENS = tuple(range(500))
CALL = GenerationCall(
    tokens=TOKENS,
    prompt_len=len(TOKENS),
    sampling=SamplingParams(),
    max_tokens=9,
    stop_token_ids=(),
    speculation=Speculation(Mode.REJECTION),
    cache_salt="d",
)


async def looked_up(**info: Any) -> Sequence[Block]:
    """Return the blocks of a call that are looked up for a verifier."""
    seen: list[Sequence[Block]] = []

    async def restore(verifier: object, call: object, blocks: Sequence[Block], rate: float) -> int:
        seen.append(blocks)
        return 0

    tier = SimpleNamespace(block_tokens=64, reader=SimpleNamespace(restore=restore), writer=None)
    client = KvVerifierClient("127.0.0.1:1", UNGUARDED, cast("KvTier", tier))
    client._info = VerifierInfo(
        model="m",
        tokenizer_hash="t",
        vocab_size=9,
        context_length=9,
        end_token_ids=(),
        gamma_max=4,
        system_fingerprint="f",
        **info,
    )
    await client.begin(CALL, 1.0)
    await client.close()
    return seen[0]


async def test_blocks_have_the_fingerprint_of_the_model_or_their_own() -> None:
    assert await looked_up() == SequenceBlocks("f", "d", 64).grow(TOKENS)
    assert await looked_up(kv_fingerprint="k") == SequenceBlocks("k", "d", 64).grow(TOKENS)


async def test_blocks_are_of_whole_blocks_of_the_verifier() -> None:
    for own, length in ((16, 64), (128, 128), (96, 192)):
        assert await looked_up(kv_block_tokens=own) == SequenceBlocks("f", "d", length).grow(TOKENS)

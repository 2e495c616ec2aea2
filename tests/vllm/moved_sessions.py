"""Generations whose readers leave, so that another verifier has to go on with them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import grpc.aio

from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.tokens import tokens_from_bytes
from tests.conformance.served_pair import Ask, call
from tests.integration.verifier.client import Client
from tests.vllm.server import ROOT

DEMO = ROOT / "models" / "demo"
BLOCK = 128
"""Tokens of a block of vLLM on a CPU."""
PROMPT_LEN = 2 * BLOCK + 20
TOKENS = 48
COUNT = 3
KINDS = {
    "greedy": (Mode.REJECTION, SamplingParams(temperature=0.0)),
    "coupled": (Mode.COUPLED, SamplingParams()),
}


def asks_of(name: str, begun: Sequence[tuple[int, ...]] = ()) -> list[Ask]:
    mode, params = KINDS[name]
    own = list(KINDS).index(name) * COUNT
    prompts = [tuple(5 + (at * 31 + place * 7) % 200 for place in range(PROMPT_LEN)) for at in range(own, own + COUNT)]
    committed = begun or [()] * COUNT
    return [
        Ask(mode, replace(params, seed=at), 4, prompt, TOKENS, committed=tokens)
        for at, (prompt, tokens) in enumerate(zip(prompts, committed, strict=True))
    ]


async def beginnings(client: Client, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
    """Return the first tokens of each answer, whose reader then leaves."""

    async def read(at: int) -> tuple[int, ...]:
        had: list[int] = []
        with suppress(grpc.aio.AioRpcError):
            async for response in client.call(**call(asks[at]), session=f"b{at}"):
                had += tokens_from_bytes(response.tokens)
                if len(had) >= TOKENS // 3:
                    break
        return tuple(had)

    return list(await asyncio.gather(*(read(at) for at in range(len(asks)))))

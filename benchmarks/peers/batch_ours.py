"""Our engine without its servers: `python -m benchmarks.peers.batch_ours`, with a verifier's environment variables."""

import asyncio
from collections.abc import Sequence
from functools import partial

import uvloop
from prometheus_client import CollectorRegistry

from benchmarks.peers.batch import Heard, answers, serve
from benchmarks.run import Ask, call_of
from specdec.serving.rpc.access import Access
from specdec.serving.telemetry.logs import configure
from verifier_service.app import loaded
from verifier_service.config import VerifierSettings
from verifier_service.metrics import VerifierMetrics
from verifier_service.passes.generations import Generations
from verifier_service.passes.readers import CallReader

_LOOK_SECONDS = 0.1


async def main() -> None:
    """Serve once all configured drafters are connected."""
    told, settings = answers(), VerifierSettings.load()
    configure("verifier", settings.log)
    access = Access.of(settings.tls, settings.token)
    async with loaded(settings, VerifierMetrics(CollectorRegistry()), access) as ready:
        wanted = len(settings.drafters)
        while sum(each.state == "ready" for each in ready.pool.states()) < wanted:  # noqa: ASYNC110 - no event says it
            await asyncio.sleep(_LOOK_SECONDS)
        await serve(partial(_answer, ready.generations), told)


async def _answer(generations: Generations, asks: Sequence[Ask], heard: Heard) -> None:
    async def one(number: int, ask: Ask) -> None:
        async for done in CallReader(generations, call_of(ask)).rounds():
            if done is not None and done.tokens:
                heard(number, done.tokens)

    await asyncio.gather(*(one(number, ask) for number, ask in enumerate(asks)))


if __name__ == "__main__":
    uvloop.run(main())

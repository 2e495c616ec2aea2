"""The composition root: every part of a verifier is made and joined here."""

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing

import structlog
from prometheus_client import CollectorRegistry

from specdec.engine import Engine
from specdec.serving.metrics import serve_metrics
from specdec.serving.server import GrpcServer, start_grpc
from verifier_service.config import VerifierSettings
from verifier_service.costs import Costs
from verifier_service.desk import Desk, Parts
from verifier_service.drafter_client import DrafterClient, Identity
from verifier_service.drafter_pool import DrafterPool
from verifier_service.job import Limits
from verifier_service.link import DrafterLink
from verifier_service.metrics import Metrics
from verifier_service.scheduler import Scheduler
from verifier_service.service import SERVICE, Model, Ready, VerifierServicer

_log = structlog.get_logger()


async def serve(settings: VerifierSettings, stop: asyncio.Event) -> None:
    """Run a verifier until `stop` is set, then let running generations finish.

    Raises:
        ConfigError: an address is taken or the model cannot be served.
    """
    async with verifier(settings) as server:
        await stop.wait()
        _log.info("draining", seconds=settings.drain_seconds)
        await server.stop(settings.drain_seconds)


@asynccontextmanager
async def verifier(settings: VerifierSettings) -> AsyncIterator[GrpcServer]:
    """A verifier that serves inside the context; its health says so only once the model is loaded and checked."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    servicer = VerifierServicer(settings.mode)
    with closing(serve_metrics(settings.http, registry, lambda: servicer.is_ready)) as http:
        server = await start_grpc(settings.address, servicer.register, [SERVICE])
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="model") as thread:
                engine = await asyncio.get_running_loop().run_in_executor(thread, load_engine, settings)
                async with _running(settings, engine, thread, metrics) as ready:
                    servicer.become_ready(ready)
                    await server.set_serving(True)
                    _log.info("serving", address=server.address, http=http.address, model=ready.model.name)
                    yield server
        finally:
            await server.stop(0)


@asynccontextmanager
async def _running(
    settings: VerifierSettings, engine: Engine, thread: Executor, metrics: Metrics
) -> AsyncIterator[Ready]:
    """The parts behind the servicer; if one of them dies, so does the process."""
    links = [DrafterLink(address, settings.drafting.probe, metrics) for address in settings.drafters]
    pool = DrafterPool(links)
    costs = Costs(settings.gamma_max, pool.step_seconds)
    scheduler = Scheduler(engine, thread, settings.chunk_tokens, settings.max_waiting, costs.passes, metrics)
    limits = Limits(engine.vocab_size, engine.context_length, settings.gamma_max)
    model = Model(
        settings.model.served_name, engine.tokenizer_hash, limits, tuple(engine.end_token_ids), engine.fingerprint
    )
    identity = Identity(f"{socket.gethostname()}/{settings.address}", engine.tokenizer_hash)
    async with asyncio.TaskGroup() as tasks:
        workers = [
            tasks.create_task(scheduler.run()),
            *(tasks.create_task(DrafterClient(link, identity).run()) for link in links),
        ]
        try:
            yield Ready(model, Desk(settings, limits, Parts(scheduler, pool, costs, metrics)), pool)
        finally:
            for worker in workers:
                worker.cancel()


def load_engine(settings: VerifierSettings) -> Engine:
    """On the model thread, which PyTorch's thread count belongs to."""
    return Engine.load(
        settings.model.path,
        dtype=settings.model.dtype,
        device=settings.model.device,
        kv_bytes=settings.kv_bytes,
        threads=settings.threads,
    )

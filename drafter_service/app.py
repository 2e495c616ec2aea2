"""The composition root: builds a running drafter from settings."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import structlog

from drafter_service.config import DrafterSettings
from drafter_service.drafters.counts_drafter import CountsDrafter
from drafter_service.drafters.feature_drafter import FeatureDrafter
from drafter_service.drafters.fed_head import FedHead
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.drafters.source_drafter import HybridDrafter, SourceDrafter
from drafter_service.drafters.source_reader import Guesser, SourceReader
from drafter_service.drafters.uniform_drafter import UniformDrafter, UniformModel
from drafter_service.metrics import DrafterMetrics
from drafter_service.service import SERVICE, DrafterService
from drafter_service.sessions.drafter import Drafter
from drafter_service.sessions.worker import Worker
from specdec.engine import NativeEngine, load_tokenizer_json, load_vocabulary
from specdec.engine.byte_tokenizer import ByteTokenizer
from specdec.engine.cpu.draw import draw_by_operator
from specdec.engine.reference import ReferenceEngine
from specdec.grammar.compiler import GrammarCompiler
from specdec.serving.heap import rare_collections
from specdec.serving.rpc.access import Access
from specdec.serving.rpc.server import GrpcServer, start_grpc
from specdec.serving.rpc.tls import watch_expiry
from specdec.serving.telemetry.metrics import serve_metrics
from specdec.serving.telemetry.registry import process_registry
from specdec.serving.telemetry.tracing import exporting
from specdec.sources.counts import COUNTS_FILE, load_counts
from specdec.sources.maker import SourceKind, SourceMaker

_GRACE_SECONDS = 2.0
"""Seconds that the server waits for its streams to end, which are closed before it stops."""

_log = structlog.get_logger()


async def serve(settings: DrafterSettings, stop: asyncio.Event) -> None:
    """Run a drafter until `stop` is set.

    Raises:
        ConfigError: an address is taken, the model cannot be served, or traces cannot be sent.
    """
    with exporting("drafter", settings.otel):
        async with drafter(settings) as running:
            await _until(stop, running.ready())
            with rare_collections():
                await _until(stop, running.ended())


class RunningDrafter:
    """A listening drafter. It serves once its model is loaded."""

    def __init__(self, server: GrpcServer, http: str, worker: Worker) -> None:
        self.address = server.address
        self.http = http
        self._server = server
        self._worker = worker

    async def ready(self) -> None:
        """Wait until the model is loaded, then report the service as healthy.

        Raises:
            ModelRefused: the model cannot be served.
        """
        info = await asyncio.shield(asyncio.wrap_future(self._worker.loaded))
        await self._server.set_serving(True)
        _log.info("drafter_ready", model=info.model, step_seconds=info.step_seconds)

    async def ended(self) -> None:
        """Wait until the worker has ended. Raise the error that ended it, if any."""
        await asyncio.shield(asyncio.wrap_future(self._worker.ended))


@asynccontextmanager
async def drafter(settings: DrafterSettings) -> AsyncIterator[RunningDrafter]:
    """Run a drafter that listens inside the context and loads its model in the background."""
    metrics = DrafterMetrics(process_registry("drafter"))
    worker = Worker(partial(load_drafter, settings), settings, metrics)
    service = DrafterService(worker, metrics)
    access = Access.of(settings.tls, settings.token)
    watch_expiry(access.certificates, metrics.registry)
    with closing(serve_metrics(settings.http, metrics.registry, lambda: worker.alive)) as http:
        server = await start_grpc(
            settings.address,
            service.register,
            [SERVICE],
            access=access,
            health_address=settings.health,
        )
        _log.info("drafter_listening", address=server.address, http=http.address)
        running = RunningDrafter(server, http.address, worker)
        worker.start()
        try:
            yield running
        finally:
            service.disconnect()
            await server.stop(_GRACE_SECONDS)
            worker.stop()
            if worker.loaded.done():  # a load cannot be interrupted, but need not be waited for
                await asyncio.wait([asyncio.wrap_future(worker.ended)])


def load_drafter(settings: DrafterSettings) -> Drafter:
    """Load the drafter that the settings select. Blocks until it is loaded."""
    name, path = settings.model.served_name, settings.model.path
    if settings.head is not None:
        return _head_drafter(settings, settings.head)
    match settings.kind:
        case "model":
            return _model_drafter(settings)
        case "hybrid":
            return HybridDrafter(_model_drafter(settings), _reader(settings, SourceKind(settings.first)))
        case "counts":
            return CountsDrafter(name, load_counts(path / COUNTS_FILE), settings.support)
        case "random":
            return UniformDrafter(name, UniformModel(load_vocabulary(path)), settings.support, "random")
        case source:
            return SourceDrafter(name, source, load_vocabulary(path), _reader(settings, SourceKind(source)))


def _model_drafter(settings: DrafterSettings) -> ModelDrafter:
    engine, tokenizer = load_engine(settings), load_tokenizer_json(settings.model.path)
    ends = engine.facts.end_token_ids
    grammars = GrammarCompiler.of_tokenizer(tokenizer, engine.vocab_size, ends)
    read = None if tokenizer is None else partial(ByteTokenizer, tokenizer, engine.vocab_size, ends)
    guesser = Guesser([_reader(settings, SourceKind(kind)) for kind in settings.local]) if settings.local else None
    return ModelDrafter(settings.model.served_name, engine, settings.support, "model", grammars, read, guesser)


def _head_drafter(settings: DrafterSettings, folder: Path) -> FeatureDrafter:
    draw_by_operator()
    model = settings.model
    head = FedHead.load(
        folder, model.path, kv_bytes=settings.kv_bytes, threads=settings.threads, **model.engine_options
    )
    tokenizer, ends = load_tokenizer_json(model.path), head.facts.end_token_ids
    grammars = GrammarCompiler.of_tokenizer(tokenizer, head.vocab_size, ends)
    return FeatureDrafter(model.served_name, head, settings.support, grammars)


def load_engine(settings: DrafterSettings) -> NativeEngine | ReferenceEngine:
    """Load the engine with the draft model."""
    model = settings.model
    if settings.backend == "transformers":
        return ReferenceEngine.load(
            model.path,
            dtype=model.dtype,
            device=model.device,
            kv_bytes=settings.kv_bytes,
            threads=settings.threads,
            allow_pickle=model.allow_pickle,
        )
    draw_by_operator()
    return NativeEngine.load(model.path, kv_bytes=settings.kv_bytes, threads=settings.threads, **model.engine_options)


def _reader(settings: DrafterSettings, kind: SourceKind) -> SourceReader:
    maker = SourceMaker(settings.sources)
    sampled = settings.sources.sampled
    return SourceReader(lambda domain, known: maker.make(kind, domain, known, known), settings.ahead, sampled=sampled)


async def _until(stop: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Wait until `work` finishes or `stop` is set."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        stopped.cancel()

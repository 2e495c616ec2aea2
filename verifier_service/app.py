"""Composition root: creates and connects all parts of a verifier."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from specdec.engine.byte_tokenizer import ByteTokenizer
from specdec.engine.cpu.draw import draw_by_operator
from specdec.engine.heads.fusing import FusingEngine
from specdec.engine.heads.headed import HeadedEngine
from specdec.engine.loader import ModelFacts, load_tokenizer_json
from specdec.engine.native import NativeEngine
from specdec.engine.reference import ReferenceEngine
from specdec.errors import ModelRefused
from specdec.grammar.compiler import GrammarCompiler
from specdec.serving.discovery import source_of, watch_age
from specdec.serving.heap import rare_collections
from specdec.serving.rpc.access import Access
from specdec.serving.rpc.server import GrpcServer, start_grpc
from specdec.serving.rpc.tls import watch_expiry
from specdec.serving.telemetry.metrics import serve_metrics
from specdec.serving.telemetry.registry import process_registry
from specdec.serving.telemetry.tracing import exporting
from specdec.wire.features import FEATURE_BYTES
from specdec.wire.generation import Adapter, VerifierInfo
from verifier_service.backends.model_step import BatchModel
from verifier_service.backends.model_thread import ModelThread
from verifier_service.beams.beam_drafts import BeamDrafters
from verifier_service.beams.beam_searches import BeamSearches
from verifier_service.beams.beam_tally import BeamTally
from verifier_service.config import VerifierSettings
from verifier_service.drafts.client import Identity
from verifier_service.drafts.link import DrafterLink
from verifier_service.drafts.pool import DrafterPool
from verifier_service.drafts.sources import DraftSources
from verifier_service.kv.blocks import KvBlocks, KvMover
from verifier_service.metrics import VerifierMetrics
from verifier_service.passes.engine_loop import EngineLoop
from verifier_service.passes.generations import Generations
from verifier_service.service import SERVICE, Ready, VerifierServicer
from verifier_service.speculation.controller import BatchSpeculation
from verifier_service.speculation.costs import DrafterTimes

_STOP_SECONDS = 2.0
"""Seconds that ended calls may take to send their last rounds and error to the gateway."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Target:
    """The target of this process, on any backend."""

    facts: ModelFacts
    model: BatchModel
    kv: KvMover
    device: str
    trees: bool
    """Whether the target judges draft trees."""
    prompt_logprobs: bool
    """Whether the target computes log probabilities of prompts."""
    encoder_decoder: bool = False
    """Whether the target reads prompts with an encoder."""
    engine: NativeEngine | None = None
    """The native engine, which beams are searched on; None on other backends."""
    adapters: tuple[Adapter, ...] = ()
    """Adapters that requests may choose."""
    head_step: float | None = None
    """Duration of a step of the target's head, in seconds; None if it has none."""
    features: str = ""
    """Name of the features that the target computes for drafters; empty for none."""

    def times(self, drafters: Callable[[], DrafterTimes]) -> Callable[[], DrafterTimes]:
        """Return the times of the default source of drafts: the head, if there is one, else the drafters."""
        return drafters if self.head_step is None else lambda: DrafterTimes(self.head_step)


async def serve(settings: VerifierSettings, stop: asyncio.Event) -> None:
    """Run a verifier until `stop` is set, then drain it.

    Raises:
        ConfigError: an address is taken, the model cannot be served, or traces cannot be sent.
    """
    with exporting("verifier", settings.otel):
        async with verifier(settings) as running:
            with rare_collections():
                await stop.wait()
                await running.drain(settings.drain_seconds)


class Running:
    """Handle of a serving verifier."""

    def __init__(self, server: GrpcServer, servicer: VerifierServicer) -> None:
        self.address = server.address
        self._server = server
        self._servicer = servicer

    async def drain(self, limit: float) -> None:
        """Refuse new calls, wait `limit` seconds for running ones, and end the rest so that gateways move them."""
        _log.info("draining", seconds=limit)
        await self._server.set_serving(False)
        moved = await self._servicer.drain(limit)
        _log.info("drained", moved=moved)
        await self._server.stop(_STOP_SECONDS)


@asynccontextmanager
async def verifier(settings: VerifierSettings) -> AsyncIterator[Running]:
    """Serve a verifier inside the context. Its health check succeeds after the model is loaded and checked."""
    registry = process_registry("verifier")
    metrics = VerifierMetrics(registry)
    servicer = VerifierServicer()
    access = Access.of(settings.tls, settings.token)
    watch_expiry(access.certificates, registry)
    with closing(serve_metrics(settings.http, registry, lambda: servicer.is_ready)) as http:
        server = await start_grpc(
            settings.address,
            servicer.register,
            [SERVICE],
            access=access,
            health_address=settings.health,
        )
        try:
            async with loaded(settings, metrics, access) as ready:
                servicer.become_ready(ready)
                await server.set_serving(True)
                _log.info("serving", address=server.address, http=http.address, model=ready.info.model)
                yield Running(server, servicer)
        finally:
            await server.stop(0)


@asynccontextmanager
async def loaded(settings: VerifierSettings, metrics: VerifierMetrics, access: Access) -> AsyncIterator[Ready]:
    """Load the model, and run a verifier without its servers inside the context."""
    with ThreadPoolExecutor(1, thread_name_prefix="model") as thread:
        target = await asyncio.get_running_loop().run_in_executor(thread, load_target, settings, thread)
        async with _running(settings, target, thread, metrics, access) as ready:
            yield ready


@asynccontextmanager
async def _running(
    settings: VerifierSettings,
    target: Target,
    thread: Executor,
    metrics: VerifierMetrics,
    access: Access,
) -> AsyncIterator[Ready]:
    """Run the parts that the servicer uses. If one of their tasks fails, the process ends."""
    facts, pool = target.facts, DrafterPool(expected=_expects_drafters(settings))
    source = source_of(settings.discovery, settings.drafters)
    watch_age(metrics.registry, source)
    drafting = settings.drafting
    # A head drafts between two passes on the model's thread, so no other group's pass could run meanwhile.
    groups = drafting.groups if target.head_step is None else 1
    speculation = BatchSpeculation(
        settings.gamma_max, settings.draft_tokens, target.times(pool.times), groups=groups, timeout=drafting.timeout
    )
    pool.rounds = speculation.rounds
    loop = EngineLoop(target.model, thread, settings, speculation, metrics)
    make_link = partial(DrafterLink, probe=settings.drafting.probe, metrics=metrics)
    tokenizer = await asyncio.get_running_loop().run_in_executor(thread, load_tokenizer_json, settings.model.path)
    identity = identity_of(settings, facts, tokenizer, f"{socket.gethostname()}/{settings.address}", access)
    identity = replace(identity, encoder_decoder=target.encoder_decoder, features=target.features)
    grammars = GrammarCompiler.of_tokenizer(tokenizer, facts.vocab_size, facts.end_token_ids)
    info = replace(_info(settings, target), grammars=grammars is not None)
    sources = DraftSources(settings, pool, speculation, info.vocab_size)
    beams = None
    if target.engine is not None:
        tally = BeamTally(settings.max_waiting, metrics.of_beams)
        beam_drafters = BeamDrafters(pool, drafting, facts.tokenizer_hash)
        beams = BeamSearches(target.engine, thread, beam_drafters, settings.chunk_tokens, loop.interrupt, tally)
    generations = Generations(settings, info, loop, sources, speculation, metrics, grammars, beams=beams)
    async with asyncio.TaskGroup() as tasks:
        working = loop.run(), pool.follow(source, make_link, identity), target.model.watch()
        workers = [tasks.create_task(each) for each in working]
        try:
            yield Ready(info, generations, pool, sources, speculation.prompts, target.kv)
        finally:
            for worker in workers:
                worker.cancel()


def _info(settings: VerifierSettings, target: Target) -> VerifierInfo:
    """Return the description of the loaded model and its limits."""
    facts = target.facts
    return VerifierInfo(
        model=settings.model.served_name,
        tokenizer_hash=facts.tokenizer_hash,
        vocab_size=facts.vocab_size,
        context_length=facts.context_length,
        end_token_ids=tuple(facts.end_token_ids),
        gamma_max=settings.gamma_max,
        system_fingerprint=facts.fingerprint,
        trees=target.trees,
        lenience=settings.lenience,
        tree=settings.tree.options if settings.tree else None,
        heartbeats=True,
        passes=True,
        prompt_logprobs=target.prompt_logprobs,
        bad_words=True,
        beams=target.engine is not None,
        adapters=target.adapters,
        kv_fingerprint=target.kv.fingerprint,
        kv_block_tokens=target.kv.block_tokens,
        turn_end_token_ids=tuple(facts.turn_end_ids),
    )


def _expects_drafters(settings: VerifierSettings) -> bool:
    return settings.drafters_expected and (bool(settings.drafters) or settings.discovery.kind != "static")


def identity_of(
    settings: VerifierSettings, facts: ModelFacts, tokenizer: str | None, name: str, access: Access
) -> Identity:
    """Return the identity with which this verifier connects to drafters as `name`.

    Raises:
        ModelRefused: drafters must translate, and the bytes of the target's tokens are not known.
    """
    if settings.drafter_vocabulary == "same":
        return Identity(name, facts.tokenizer_hash, access)
    if tokenizer is None:
        raise ModelRefused("drafter_vocabulary is `translate`, and the target has no tokenizer.json")
    vocabulary = ByteTokenizer(tokenizer, facts.vocab_size, facts.end_token_ids).vocabulary
    return Identity(name, facts.tokenizer_hash, access, vocabulary, settings.least_overlap)


def load_target(settings: VerifierSettings, thread: Executor) -> Target:
    """Load the target on the backend of the settings. Call this on the only worker of `thread`, which owns the target.

    Raises:
        ConfigError: the folder has no model that can be served, or the backend is not installed.
    """
    if settings.backend == "vllm":
        from verifier_service.vllm.adapters import adapters_of
        from verifier_service.vllm.remote import open_target

        facts, remote, kv = open_target(settings)
        adapters = adapters_of(settings, facts.fingerprint)
        step = remote.head_step
        return Target(facts, remote, kv, "vllm", trees=False, prompt_logprobs=False, adapters=adapters, head_step=step)
    if settings.backend == "transformers":
        reference = load_reference(settings)
        model = ModelThread(reference, settings)
        facts, device, encodes = reference.facts, str(reference.device), reference.encoder_decoder
        return Target(facts, model, KvMover(), device, trees=False, prompt_logprobs=False, encoder_decoder=encodes)
    engine = load_engine(settings)
    native = engine if isinstance(engine, NativeEngine) else engine.target
    return Target(
        native.facts,
        ModelThread(engine, settings),
        KvBlocks(native, thread),
        str(native.device),
        trees=True,
        prompt_logprobs=True,
        engine=native,
        head_step=engine.head.step_seconds() if isinstance(engine, HeadedEngine) else None,
        features=engine.features if isinstance(engine, FusingEngine) else "",
    )


def load_reference(settings: VerifierSettings) -> ReferenceEngine:
    """Load the target into the reference engine. Call this on the model thread.

    Raises:
        ConfigError: the folder has no model that can be served.
    """
    model = settings.model
    return ReferenceEngine.load(
        model.path,
        dtype=model.dtype,
        device=model.device,
        kv_bytes=settings.kv_bytes,
        threads=settings.threads,
        allow_pickle=model.allow_pickle,
    )


def load_engine(settings: VerifierSettings) -> NativeEngine | HeadedEngine | FusingEngine:
    """Load the target into the native engine, with its head or a part of it if the settings name one.

    Call this on the model thread, for which it sets PyTorch's thread count.

    Raises:
        ConfigError: the folder has no model that can be served.
    """
    draw_by_operator()
    model = settings.model
    options: dict[str, Any] = {
        "kv_bytes": settings.kv_bytes,
        "threads": settings.threads,
        "wide_threads": settings.wide_threads,
    }
    if settings.head is not None:
        return HeadedEngine.load(settings.head, model.path, **options, **model.engine_options)
    if settings.drafter_head is not None:
        options["most_bytes"] = FEATURE_BYTES
        return FusingEngine.load(settings.drafter_head, model.path, **options, **model.engine_options)
    return NativeEngine.load(model.path, **options, **model.engine_options)

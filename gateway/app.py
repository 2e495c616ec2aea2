"""Assembles the parts of the gateway and runs them from process start to exit."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from gateway import health
from gateway.admission import Admission, Drain
from gateway.callers.key_file import KeyFile
from gateway.config import GatewaySettings
from gateway.http import probes, routes
from gateway.http.requests.bodies import BodyReader
from gateway.http.server import CLOSE_GRACE, http_server, server_context
from gateway.kv.check import check_block_store
from gateway.kv.tier import KvTier
from gateway.metrics import GatewayMetrics, KeyMetrics
from gateway.models.routing import load_tokenizers, models_of, searches
from gateway.request import new_id
from gateway.rpc import service
from gateway.rpc.door import CallerInterceptor, KeyInterceptor
from gateway.store import redis_client
from gateway.store.check import store_checks
from gateway.store.limits import Limits
from gateway.store.pins import Pins
from gateway.store.redis_client import ServerFacts
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.sessions import SessionStore
from gateway.tasks import cancel_and_wait
from gateway.text.tokenizer import ModelTokenizer
from gateway.turns.adopter import Adopter
from gateway.turns.broadcast import Leases
from gateway.turns.services import Services
from gateway.verifiers.pass_loop import PassLoops
from specdec.errors import ConfigError, SessionStoreDown
from specdec.serving.addresses import is_loopback
from specdec.serving.checks import Check, Status
from specdec.serving.heap import rare_collections, return_memory
from specdec.serving.rpc.access import Access
from specdec.serving.rpc.server import GrpcServer, start_grpc
from specdec.serving.rpc.tls import Certificates, watch_expiry
from specdec.serving.telemetry.registry import process_registry
from specdec.serving.telemetry.tracing import exporting

FIRST_PROBE = 2.0
"""Longest wait, in seconds, for the first verifiers before the gateway starts to listen, ready or not."""
READY_POLL = 0.2
"""Seconds between two checks of readiness for the gRPC health service."""

_log = structlog.get_logger()


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain.

    Raises:
        ConfigError: the tokenizer does not load, the session store is unfit, an address cannot be bound, or traces
            cannot be sent.
    """
    with exporting("gateway", settings.otel):
        await _serve(settings, stop)


async def _serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    tokenizers = await load_tokenizers(settings)
    policy = StorePolicy(
        lease=settings.lease,
        ttl=settings.session_ttl,
        patience=settings.store_patience,
        replicas=settings.store_replicas,
        prefix=settings.redis_prefix,
    )
    sessions = RedisSessionStore.at(settings.redis_url, policy)
    pins = Pins(redis_client.connect(settings.redis_url), settings.session_ttl, settings.redis_prefix)
    async with running(settings, tokenizers, sessions, pins) as gateway:
        warn_of_open_door(settings)
        await _check_stores(settings)
        _log.info("gateway_started", http=gateway.http, grpc=gateway.grpc, models=list(tokenizers))
        with rare_collections():
            await stop.wait()
            await gateway.drain()


def warn_of_open_door(settings: GatewaySettings) -> None:
    """Log a warning if the gateway listens beyond localhost without API keys, or accepts keys in plaintext."""
    reachable = [address for address in (settings.http, settings.address) if not is_loopback(address)]
    if reachable and not settings.api_keys:
        remedy = "set api_keys to a file of keys, or see that only a proxy that authenticates reaches these addresses"
        _log.warning("open_to_everybody", addresses=reachable, remedy=remedy)
    elif reachable and not settings.public_tls.certificate:
        remedy = "set public_tls, or let an ingress end TLS"
        _log.warning("keys_in_plaintext", addresses=reachable, remedy=remedy)


async def _check_stores(settings: GatewaySettings) -> None:
    """Raise ConfigError for stores that cannot work, and log warnings. A store that does not answer yet passes."""
    facts: ServerFacts | None = None
    lines: list[Check] = []
    try:
        facts = await redis_client.server_facts(settings.redis_url)
        lines += store_checks(facts, settings.store_replicas)
    except SessionStoreDown as error:
        _log.warning("session_store_away", error=error.message)
    if settings.kv.redis_url:
        lines += await check_block_store(settings.kv.redis_url, facts)
    for line in lines:
        if line.status is Status.FAIL:
            raise ConfigError(f"{line.name}: {line.detail}; {line.remedy}")
        if line.status is Status.WARN:
            _log.warning("store_unwise", store=line.name, what=line.detail, remedy=line.remedy)


class Gateway:
    """A running gateway, with the addresses it listens on."""

    def __init__(self, http: str, grpc_server: GrpcServer, services: Services) -> None:
        self.http = http
        self.grpc = grpc_server.address
        self._grpc_server = grpc_server
        self._services = services

    async def drain(self) -> None:
        """Report not ready, then refuse new requests, then wait for the generations that have a reader.

        Generations without a reader, and those that exceed the limit, are stopped. Other gateways can continue them.
        """
        services, settings = self._services, self._services.settings.drain
        _log.info("draining", settle=settings.settle, limit=settings.limit)
        services.drain.announce()
        await self._grpc_server.set_serving(False)
        await asyncio.sleep(settings.settle)
        services.drain.close()
        await services.broadcasts.stop_unread()
        finished = await services.drain.wait(settings.limit)
        await services.broadcasts.close()
        _log.info("drained", finished=finished)


@asynccontextmanager
async def running(
    settings: GatewaySettings,
    tokenizers: Mapping[str, ModelTokenizer],
    sessions: SessionStore,
    pins: Pins | None = None,
) -> AsyncIterator[Gateway]:
    """Serve HTTP and gRPC until the context ends.

    Raises:
        ConfigError: an address cannot be bound, or a file of API keys, of TLS or of a model's defaults is wrong.
    """
    metrics = GatewayMetrics(process_registry("gateway"))
    models = models_of(settings, tokenizers, metrics, pins)
    certificates = Certificates.of(settings.public_tls)
    watch_expiry(certificates, metrics.registry, public=True)
    if certificates:
        server_context(certificates)  # a mismatched pair fails here, and not later as a failure to bind the port
    kv_tier = KvTier(settings.kv, metrics.registry) if settings.kv.redis_url else None
    keys, limits = _keys(settings, settings.api_keys, metrics.registry) if settings.api_keys else (None, None)
    owner = new_id()
    services = Services(
        models=models,
        sessions=sessions,
        drain=Drain(metrics),
        generations=Admission("generations", settings.admission.running, settings.admission, metrics),
        calls=Admission("calls", settings.admission.calls, settings.admission, metrics),
        metrics=metrics,
        settings=settings,
        passes=PassLoops(sessions, metrics),
        leases=Leases(sessions, owner, settings.lease),
        owner=owner,
        keys=keys,
        limits=limits,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(sessions.close)
        if pins:
            stack.push_async_callback(pins.close)
        stack.push_async_callback(models.close)
        stack.push_async_callback(services.passes.close)
        stack.push_async_callback(services.leases.close)
        stack.push_async_callback(services.broadcasts.close)
        stack.push_async_callback(services.grammars.close)
        if kv_tier:
            stack.push_async_callback(kv_tier.store.close)
            await stack.enter_async_context(_background(kv_tier.writer.run()))
        for search in searches(settings, models, metrics, kv_tier):
            await stack.enter_async_context(_background(search))
        if keys and limits:
            stack.push_async_callback(limits.close)
            await stack.enter_async_context(_background(keys.watch()))
            await stack.enter_async_context(_background(limits.renew()))
        await stack.enter_async_context(_background(Adopter(services).run()))
        await stack.enter_async_context(_background(return_memory()))
        with suppress(TimeoutError):
            await asyncio.wait_for(models.wait_known(), FIRST_PROBE)
        grpc_server = await start_grpc(
            settings.address,
            lambda server: service.register(server, services),
            service.SERVICES,
            Access(certificates, door=KeyInterceptor(keys) if keys else None, observer=CallerInterceptor()),
            health_address=settings.health,
            max_message_bytes=settings.max_body_bytes,
        )
        stack.push_async_callback(grpc_server.stop, CLOSE_GRACE)
        await stack.enter_async_context(_background(_follow_readiness(services, grpc_server)))
        if settings.admin:
            await stack.enter_async_context(http_server(probes.admin(services), settings.admin))
        bodies = BodyReader(settings.max_body_bytes, settings.admission.seconds)
        stack.push_async_callback(bodies.close)
        application = routes.build(services, bodies)
        address = await stack.enter_async_context(
            http_server(application, settings.http, certificates, settings.proxies)
        )
        yield Gateway(address, grpc_server, services)


def _keys(settings: GatewaySettings, path: Path, registry: CollectorRegistry) -> tuple[KeyFile, Limits]:
    """Return the API keys and their rate limits; raises ConfigError when the file is invalid."""
    metrics = KeyMetrics(registry)
    keys = KeyFile(path, settings.key_limits, metrics)
    return keys, Limits(redis_client.connect(settings.redis_url), metrics, settings.redis_prefix)


async def _follow_readiness(services: Services, grpc_server: GrpcServer) -> None:
    """Copy readiness to the gRPC health service until the drain begins."""
    while not services.drain.closing:
        await grpc_server.set_serving(not await health.missing(services))
        await asyncio.sleep(READY_POLL)


@asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    async def logged() -> None:
        try:
            await work
        except Exception as error:
            _log.critical("background_task_failed", exc_info=error)
            raise

    task = asyncio.create_task(logged())
    try:
        yield
    finally:
        await cancel_and_wait(task)

"""Joins the parts of the gateway, and runs them from the start of the process to its end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from gateway import health
from gateway.admission import Admission
from gateway.config import GatewaySettings
from gateway.discovery.sources import source_of
from gateway.drain import Drain
from gateway.http import probes, routes
from gateway.http.connection import BoundedConnection
from gateway.kv.check import check_block_store
from gateway.kv.tier import KvTier, KvVerifierClient
from gateway.metrics import GatewayMetrics
from gateway.request import new_id
from gateway.rpc import service
from gateway.store import redis_client
from gateway.store.check import store_checks
from gateway.store.pins import Pins
from gateway.store.redis_client import ServerFacts
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.sessions import SessionStore
from gateway.tasks import cancel_and_wait
from gateway.text.prompt_encoder import PromptEncoder
from gateway.text.tokenizer import ModelTokenizer
from gateway.turns.adopter import Adopter
from gateway.turns.services import Services
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.client import VerifierClient
from specdec.errors import ConfigError, SessionStoreDown
from specdec.serving.access import Access
from specdec.serving.checks import Check, Status
from specdec.serving.discovery import watch_age
from specdec.serving.server import GrpcServer, start_grpc
from specdec.serving.settings import split_address
from specdec.serving.tls import watch_expiry

CLOSE_GRACE = 1.0
"""Seconds that connections have to end once no generation runs."""
FIRST_PROBE = 2.0
"""Seconds that the gateway waits for the first verifiers before it listens, ready or not."""
KEEP_ALIVE = 75
"""Seconds an idle HTTP connection stays open; longer than those of usual proxies, so that they close first."""
READY_POLL = 0.2
"""Seconds between two checks of readiness for the gRPC health service."""

_log = structlog.get_logger()


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then drain.

    Raises:
        ConfigError: the tokenizer does not load, the session store is unfit, or an address cannot be bound.
    """
    tokenizer = await asyncio.to_thread(ModelTokenizer.load, settings.model.path)
    policy = StorePolicy(
        lease=settings.lease,
        ttl=settings.session_ttl,
        patience=settings.store_patience,
        replicas=settings.store_replicas,
        prefix=settings.redis_prefix,
    )
    sessions = RedisSessionStore.at(settings.redis_url, policy)
    pins = Pins(redis_client.connect(settings.redis_url), settings.session_ttl, settings.redis_prefix)
    async with running(settings, tokenizer, sessions, pins) as gateway:
        await _check_stores(settings)
        _log.info("gateway_started", http=gateway.http, grpc=gateway.grpc, model=settings.model.served_name)
        await stop.wait()
        await gateway.drain()


async def _check_stores(settings: GatewaySettings) -> None:
    """Refuse stores that cannot work, and log what is unwise; a store that does not answer yet is not refused."""
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
        """Stop being ready, then take no new requests, then wait for generations that are read.

        Generations that nobody reads, or that do not finish in time, are stopped; other gateways can continue them.
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
    settings: GatewaySettings, tokenizer: ModelTokenizer, sessions: SessionStore, pins: Pins | None = None
) -> AsyncIterator[Gateway]:
    """Serve HTTP and gRPC until the context ends.

    Raises:
        ConfigError: an address cannot be bound.
    """
    metrics = GatewayMetrics(CollectorRegistry())
    pool = VerifierPool(tokenizer.fingerprint, metrics, pins)
    access = Access.of(settings.tls, settings.token)
    watch_expiry(access.certificates, metrics.registry)
    dial: Callable[[str], VerifierClient] = partial(VerifierClient, access=access)
    kv_tier = KvTier(settings.kv, metrics.registry) if settings.kv.redis_url else None
    if kv_tier:
        dial = partial(KvVerifierClient, access=access, tier=kv_tier)
    source = source_of(settings.discovery, settings.verifiers, settings.cluster)
    watch_age(source, metrics.registry)
    services = Services(
        tokenizer=tokenizer,
        prompts=PromptEncoder(tokenizer),
        pool=pool,
        sessions=sessions,
        drain=Drain(metrics),
        generations=Admission("generations", settings.admission.running, settings.admission, metrics),
        calls=Admission("calls", settings.admission.calls, settings.admission, metrics),
        metrics=metrics,
        settings=settings,
        owner=new_id(),
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(sessions.close)
        stack.push_async_callback(pool.close)
        stack.push_async_callback(services.broadcasts.close)
        stack.push_async_callback(services.grammars.close)
        if kv_tier:
            stack.push_async_callback(kv_tier.store.close)
            await stack.enter_async_context(_background(kv_tier.writer.run()))
        await stack.enter_async_context(_background(pool.follow(source, dial)))
        await stack.enter_async_context(_background(pool.watch(settings.poll)))
        await stack.enter_async_context(_background(Adopter(services).run()))
        with suppress(TimeoutError):
            await asyncio.wait_for(pool.known.wait(), FIRST_PROBE)
        grpc_server = await start_grpc(
            settings.address,
            lambda server: service.register(server, services),
            service.SERVICES,
            health_address=settings.health,
            max_message_bytes=settings.max_body_bytes,
        )
        stack.push_async_callback(grpc_server.stop, CLOSE_GRACE)
        await stack.enter_async_context(_background(_follow_readiness(services, grpc_server)))
        if settings.admin:
            await stack.enter_async_context(_http_server(probes.admin(services), settings.admin))
        address = await stack.enter_async_context(_http_server(routes.build(services), settings.http))
        yield Gateway(address, grpc_server, services)


async def _follow_readiness(services: Services, grpc_server: GrpcServer) -> None:
    """Keep the gRPC health service in step with readiness, until the end of the process is announced."""
    while not services.drain.closing:
        await grpc_server.set_serving(not await health.missing(services))
        await asyncio.sleep(READY_POLL)


class _Server(uvicorn.Server):
    """A uvicorn server that handles no signals: the process does that itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _http_server(app: ASGIApp, address: str) -> AsyncIterator[str]:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=round(CLOSE_GRACE),
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


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

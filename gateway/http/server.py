"""HTTP server, in plaintext or with a certificate that is reloaded when it changes."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

import structlog
import uvicorn
from starlette.types import ASGIApp

from gateway.http.connection import ArrivingRequests, BoundedConnection, UnreadAnswers
from gateway.tasks import cancel_and_wait
from specdec.errors import ConfigError
from specdec.serving.addresses import listen
from specdec.serving.rpc.tls import Certificates

CLOSE_GRACE = 1.0
"""Seconds for connections to end after the last generation."""
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open; longer than in common proxies, so that they close first."""
UNSENT_BYTES = 32 * 1024
"""Bytes that the kernel accepts for a connection beyond what its client can receive. Without this limit it accepts
megabytes, so an unread stream would be generated and kept to its end."""

_log = structlog.get_logger()


class _Server(uvicorn.Server):
    """uvicorn server without signal handlers; the process handles signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def http_server(
    app: ASGIApp, address: str, certificates: Certificates | None = None, proxies: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Serve until the context ends; the value is the bound `host:port`.

    Args:
        app: ASGI application.
        address: `host:port` to listen on.
        certificates: TLS certificate; None serves plaintext.
        proxies: addresses or networks of proxies trusted to name the client.

    Raises:
        ConfigError: the address cannot be bound, or the certificate cannot be used.
    """
    context = server_context(certificates) if certificates else None
    try:
        listener, bound = listen(address, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)  # accepted sockets inherit it
    server = _Server(_config(app, context, proxies))
    async with AsyncExitStack() as stack:
        if certificates and context:
            stack.push_async_callback(cancel_and_wait, asyncio.create_task(_reload(certificates, context)))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield bound
        finally:
            server.should_exit = True
            await task


def _config(app: ASGIApp, context: ssl.SSLContext | None, proxies: Sequence[str]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(BoundedConnection, UnreadAnswers(), ArrivingRequests()),  # type: ignore[arg-type] # called as a class is
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=round(CLOSE_GRACE),
        ssl_context_factory=(lambda config, default: context) if context else None,
    )


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """Return a TLS context; raises ConfigError if the files are not a certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        certificates.load_into(context)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(f"public_tls: certificate and key cannot be used: {error}") from error
    return context


async def _reload(certificates: Certificates, context: ssl.SSLContext) -> None:
    """Reload the certificate for new connections when it changes, until cancelled; ignore an invalid one."""
    async for _ in certificates.changes():
        try:
            server_context(certificates)  # validate first: a mismatched pair leaves the serving context unchanged
            certificates.load_into(context)
        except (ConfigError, OSError, ValueError) as error:
            _log.error("certificate_not_read", error=str(error))
        else:
            _log.info("certificate_read")

"""The HTTP server, in plaintext or with a certificate that is read again when it changes."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

import structlog
import uvicorn
from starlette.types import ASGIApp

from gateway.http.connection import BoundedConnection
from gateway.http.unread import UnreadAnswers
from gateway.tasks import cancel_and_wait
from specdec.errors import ConfigError
from specdec.serving.rpc.tls import Certificates
from specdec.serving.settings import split_address

CLOSE_GRACE = 1.0
"""Seconds that connections have to end once no generation runs."""
KEEP_ALIVE = 75
"""Seconds an idle connection stays open; longer than those of usual proxies, so that they close first."""

_log = structlog.get_logger()


class _Server(uvicorn.Server):
    """A uvicorn server that handles no signals: the process does that itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def http_server(
    app: ASGIApp, address: str, certificates: Certificates | None = None, proxies: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Serve until the context ends; the value is the bound `host:port`.

    Args:
        proxies: addresses or networks of proxies that are believed who calls.

    Raises:
        ConfigError: the address cannot be bound, or the certificate cannot be used.
    """
    context = server_context(certificates) if certificates else None
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    server = _Server(_config(app, context, proxies))
    async with AsyncExitStack() as stack:
        if certificates and context:
            stack.push_async_callback(cancel_and_wait, asyncio.create_task(_reload(certificates, context)))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


def _config(app: ASGIApp, context: ssl.SSLContext | None, proxies: Sequence[str]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(BoundedConnection, UnreadAnswers()),  # type: ignore[arg-type] # called as a class is
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
    """A context for new connections; raises ConfigError when the files are no certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        certificates.load_into(context)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise ConfigError(f"public_tls: certificate and key cannot be used: {error}") from error
    return context


async def _reload(certificates: Certificates, context: ssl.SSLContext) -> None:
    """Have new connections see the present certificate, until cancelled; a wrong one changes nothing."""
    async for _ in certificates.changes():
        try:
            server_context(certificates)  # the context that serves is not touched by files that do not belong together
            certificates.load_into(context)
        except (ConfigError, OSError, ValueError) as error:
            _log.error("certificate_not_read", error=str(error))
        else:
            _log.info("certificate_read")

"""A gRPC server with health and reflection, and the main function of a service process."""

import asyncio
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress

import grpc.aio
import structlog
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specdec.errors import ConfigError
from specdec.serving.addresses import listen
from specdec.serving.rpc.access import UNGUARDED, Access
from specdec.serving.rpc.channel import MAX_MESSAGE_BYTES
from specdec.serving.rpc.decoding import DecodeInterceptor
from specdec.serving.rpc.interceptors import ErrorInterceptor
from specdec.serving.rpc.tls import Certificates

EXIT_CONFIG = 2
LIVENESS = "liveness"
"""Health service name of the process itself. It is SERVING while the process responds, ready or not."""

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    # Pings are answered however often they come, which takes little. Where the C core counts them, each ping of a flood
    # after the one that ends the connection takes it a hundred times as long.
    ("grpc.http2.max_ping_strikes", 0),
    # A client that resets its calls must answer a ping for each, so it cannot reset them faster than they are read.
    ("grpc.http2.ping_on_rst_stream_percent", 100),
    # The servers of one process share a port; `_reserved` keeps other processes out.
    ("grpc.so_reuseport", 1),
    # A connection that does not finish its handshake is closed.
    ("grpc.server_handshake_timeout_ms", 10_000),
)
_REFUSED_UNREAD = 2
"""Multiple of the size limit above which gRPC refuses messages unread. Smaller ones are refused with a reason."""
_RETIRED = 3600.0
"""Maximum time, in seconds, that calls may continue on a server after its certificate was renewed."""

_log = structlog.get_logger()


class GrpcServer:
    """A running server. Its services are NOT_SERVING until `set_serving(True)`.

    Each certificate gets its own server on the same port. Replacing the certificate of a server is unsafe: gRPC frees
    memory that other handshakes may be using (grpc/grpc#36693). After a renewal, the old server accepts no connections
    and ends with its last call.
    """

    def __init__(
        self,
        make: Callable[[], grpc.aio.Server],
        address: str,
        services: Sequence[str],
        certificates: Certificates | None,
        probes: grpc.aio.Server | None,
    ) -> None:
        """Create a server that does not serve yet.

        Args:
            make: creates a gRPC server, bound to `address`, with all services but health.
            certificates: certificate files; `make` is called again after each change.
            probes: second server, for health only.

        Raises:
            ConfigError: from `make`.
        """
        self._make = make
        self._server = make()
        self._retired: set[grpc.aio.Server] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._certificates = certificates
        self._probes = probes
        self._services = ("", *services)
        self._health = health.aio.HealthServicer()
        self.address = address

    async def set_serving(self, serving: bool) -> None:
        """Set the health status of every service and of the server as a whole."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in self._services:
            await self._health.set(service, status)

    async def stop(self, grace: float) -> None:
        """Refuse new calls, and end running calls after `grace` seconds."""
        for task in self._tasks:
            task.cancel()
        await self._health.enter_graceful_shutdown()
        await asyncio.gather(*(server.stop(grace) for server in (self._server, *self._retired)))
        if self._probes:
            await self._probes.stop(0)

    async def start(self) -> None:
        """Start to serve, and to watch the certificate files."""
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_serving(False)
        for server in filter(None, (self._server, self._probes)):
            await self._start(server)
        if self._certificates:
            self._begin(self._follow(self._certificates))

    async def _start(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        await server.start()

    async def _follow(self, certificates: Certificates) -> None:
        """Serve new connections with the current certificate until cancelled. An invalid certificate is ignored."""
        async for _ in certificates.changes():
            try:
                renewed = self._make()
            except ConfigError as error:
                _log.error("certificate_not_read", error=error.message)
                continue
            await self._start(renewed)
            retired, self._server = self._server, renewed
            self._retired.add(retired)
            self._begin(self._retire(retired))
            _log.info("certificate_read")

    async def _retire(self, server: grpc.aio.Server) -> None:
        await server.stop(_RETIRED)
        self._retired.discard(server)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def start_grpc(
    address: str,
    register: Callable[[grpc.aio.Server], None],
    services: Sequence[str],
    access: Access = UNGUARDED,
    health_address: str | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> GrpcServer:
    """Bind the addresses, register the services and start the server.

    Args:
        address: `host:port`; port 0 picks a free port, which the server's `address` contains.
        register: adds the services to a server; called again after each certificate renewal.
        services: full names of the services, for health and reflection.
        access: credentials that callers must present; without certificates the server speaks plaintext.
        health_address: second address for health and reflection only, without TLS and token, because a kubelet
            probes in plaintext; reflection is at `address` only when this is None.
        max_message_bytes: maximum size of a message from a caller.

    Raises:
        ConfigError: an address cannot be bound, or the certificate cannot be used.
    """
    received = ("grpc.max_receive_message_length", _REFUSED_UNREAD * max_message_bytes)
    interceptors = [*access.doors, ErrorInterceptor(), DecodeInterceptor(max_message_bytes)]
    reflected = [*services, health.SERVICE_NAME, reflection.SERVICE_NAME]
    certificates = access.certificates

    probes = grpc.aio.server(options=_OPTIONS) if health_address else None
    with _reserved(address) as bound:

        def make() -> grpc.aio.Server:
            server = grpc.aio.server(interceptors=interceptors, options=(*_OPTIONS, received))
            _bind(server, bound, certificates)
            register(server)
            reflection.enable_server_reflection(reflected, probes or server)
            return server

        running = GrpcServer(make, bound, services, certificates, probes)
    if probes and health_address:
        with _reserved(health_address) as apart:
            _bind(probes, apart, None)
    await running.start()
    return running


@contextmanager
def _reserved(address: str) -> Iterator[str]:
    """Reserve a port for the servers of this process. Yield `host:port` with the actual port.

    Servers bind to it inside the context. They share the port, and no other process can take it.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        reserved, bound = listen(address)  # from here on, no other socket can be bound to the port ...
        with reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # ... but those that share it, as gRPC's
            yield bound
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from error


def _bind(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> None:
    try:
        if certificates is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, certificates.for_server())
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}: the port is taken or the host is not this machine's") from error


def run_service(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main` until it returns. SIGTERM or SIGINT sets its event; a second signal ends the process.

    Returns:
        Exit status: 0, or 2 for a wrong setting, which is reported in one line on stderr.
    """
    _raise_file_limit()
    try:
        uvloop.run(_until_stopped(main))
    except ConfigError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit, because each caller's connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _until_stopped(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def first_signal(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # not every platform has signal handlers for loops
            loop.add_signal_handler(number, first_signal, number)
    await main(stop)

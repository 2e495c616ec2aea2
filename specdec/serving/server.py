"""A gRPC server with health and reflection, and the main function of a service process."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence

import grpc.aio
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specdec.errors import ConfigError
from specdec.serving.access import UNGUARDED, Access
from specdec.serving.channel import MAX_MESSAGE_BYTES
from specdec.serving.decoding import DecodeInterceptor
from specdec.serving.interceptors import ErrorInterceptor
from specdec.serving.settings import split_address
from specdec.serving.tls import Certificates

EXIT_CONFIG = 2
LIVENESS = "liveness"
"""The health service's name for the process itself, which is SERVING while the process answers, ready or not."""

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    # The channels of other services ping more often than gRPC allows by default.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # With two processes on one port, each would get some of the calls; the second is refused instead.
    ("grpc.so_reuseport", 0),
    # A connection that does not finish its handshake is closed.
    ("grpc.server_handshake_timeout_ms", 10_000),
)
_REFUSED_UNREAD = 2
"""Messages of so many times the limit are refused by grpc before they are read, smaller ones with a reason."""


class GrpcServer:
    """A running server; its services are NOT_SERVING until `set_serving(True)`."""

    def __init__(
        self, server: grpc.aio.Server, address: str, services: Sequence[str], probes: grpc.aio.Server | None
    ) -> None:
        self._server = server
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
        """Refuse new calls, and end those that still run after `grace` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)
        if self._probes:
            await self._probes.stop(0)

    async def start(self) -> None:
        """Add the health service and start to serve."""
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_serving(False)
        for server in filter(None, (self._server, self._probes)):
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            await server.start()


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
        address: `host:port`; port 0 takes a free one, and the server's `address` says which.
        services: the full names of the services, for health and reflection.
        access: what callers must show; without certificates the server speaks plaintext.
        health_address: a second address for health and reflection alone, without TLS and token, because a kubelet
            probes in plaintext; reflection is at `address` only when this is None.
        max_message_bytes: the largest message that is taken from a caller.

    Raises:
        ConfigError: an address cannot be bound.
    """
    received = ("grpc.max_receive_message_length", _REFUSED_UNREAD * max_message_bytes)
    interceptors = [ErrorInterceptor(), DecodeInterceptor(max_message_bytes)]
    server = grpc.aio.server(interceptors=[*access.doors, *interceptors], options=(*_OPTIONS, received))
    bound = _bind(server, address, access.certificates)
    probes = grpc.aio.server(options=_OPTIONS) if health_address else None
    if probes and health_address:
        _bind(probes, health_address, None)
    register(server)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], probes or server)
    running = GrpcServer(server, bound, services, probes)
    await running.start()
    return running


def _bind(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> str:
    try:
        if certificates is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificates.for_server())
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}: the port is taken or the host is not this machine's") from error
    return f"{split_address(address)[0]}:{port}"


def run_service(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main` until it returns; SIGTERM or SIGINT sets its event, and a second signal ends the process.

    Returns:
        The exit status: 0, or 2 for a wrong setting, which is reported in one line on stderr.
    """
    try:
        uvloop.run(_until_stopped(main))
    except ConfigError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


async def _until_stopped(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def first_signal(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # not every platform has signal handlers for loops
            loop.add_signal_handler(number, first_signal, number)
    await main(stop)

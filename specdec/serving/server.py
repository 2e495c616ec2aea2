"""A gRPC server with health and reflection, and the life of a process around it."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specdec.errors import ConfigError
from specdec.serving.channel import MAX_MESSAGE_BYTES
from specdec.serving.interceptors import ErrorInterceptor
from specdec.serving.settings import split_address

EXIT_CONFIG = 2

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Two processes on one port would each get some of the calls: refuse the second instead.
    ("grpc.so_reuseport", 0),
)


class GrpcServer:
    """A running server; its services are NOT_SERVING until `set_serving(True)`."""

    def __init__(self, server: grpc.aio.Server, address: str, services: Sequence[str]) -> None:
        self._server = server
        self._services = ("", *services)
        self._health = health.aio.HealthServicer()
        self.address = address

    async def set_serving(self, serving: bool) -> None:
        """Say whether calls are welcome, for every service and for the server as a whole."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in self._services:
            await self._health.set(service, status)

    async def stop(self, grace: float) -> None:
        """Refuse new calls, give running ones `grace` seconds, then end them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)

    async def start(self) -> None:
        """Add health and begin to serve."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        await self.set_serving(False)
        await self._server.start()


async def start_grpc(
    address: str,
    register: Callable[[grpc.aio.Server], None],
    services: Sequence[str],
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> GrpcServer:
    """Bind, register and start.

    Args:
        address: `host:port`; port 0 takes a free one, and the server's `address` says which.
        register: adds the servicers.
        services: their full names, for health and reflection.
        interceptors: inside the one that translates errors.

    Raises:
        ConfigError: the address cannot be bound.
    """
    server = grpc.aio.server(interceptors=[ErrorInterceptor(), *interceptors], options=_OPTIONS)
    host, _ = split_address(address)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}: the port is taken or the host is not this machine's") from error
    register(server)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    running = GrpcServer(server, f"{host}:{port}", services)
    await running.start()
    return running


def run_service(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main` until it returns; SIGTERM and SIGINT set the event it is given, a second one ends the process.

    Returns:
        The exit status: 0, or 2 when a setting is wrong (one line on stderr, no traceback).
    """
    try:
        asyncio.run(_until_stopped(main))
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
        with contextlib.suppress(NotImplementedError):  # platforms without loop signals
            loop.add_signal_handler(number, first_signal, number)
    await main(stop)

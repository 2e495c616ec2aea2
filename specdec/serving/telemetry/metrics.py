"""HTTP server of a gRPC service: /metrics for Prometheus, /livez and /readyz for people and probes."""

import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler

from specdec.errors import ConfigError
from specdec.serving.addresses import listen

_POLL_SECONDS = 0.05
"""Maximum time to close the server, in seconds. Python's default of 0.5 would delay the end of every process."""


class MetricsServer:
    """HTTP server on its own threads, which responds even while the event loop is busy."""

    def __init__(self, server: ThreadingHTTPServer, address: str) -> None:
        """Args: address: the bound `host:port` of the server."""
        self._server = server
        self.address = address
        self._thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_metrics(address: str, registry: CollectorRegistry, ready: Callable[[], bool]) -> MetricsServer:
    """Start serving `registry`. /readyz responds with 200 while `ready()` is true, else 503.

    Raises:
        ConfigError: the address cannot be bound.
    """
    handler = type("Handler", (_Handler,), {"registry": registry, "ready": staticmethod(ready)})
    try:
        listener, bound = listen(address)
    except OSError as error:
        raise ConfigError(f"http address {address}: {error.strerror}") from error
    server = ThreadingHTTPServer(("", 0), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    return MetricsServer(server, bound)


class _Handler(MetricsHandler):
    ready: Callable[[], bool]

    def do_GET(self) -> None:  # noqa: N802
        match self.path.partition("?")[0]:
            case "/metrics":
                super().do_GET()
            case "/livez":
                self._answer(200, b"ok\n")
            case "/readyz":
                ready = type(self).ready()
                self._answer(200 if ready else 503, b"ready\n" if ready else b"not ready\n")
            case _:
                self._answer(404, b"not found\n")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

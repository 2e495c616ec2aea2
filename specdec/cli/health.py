"""Whether a service answers and reports that it is healthy."""

import http.client
import urllib.error
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT = 1.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # Without a pool of its own, each check would inherit the growing back-off of the checks before it.
    ("grpc.use_local_subchannel_pool", 1),
)


def grpc_serving(address: str) -> bool:
    """Whether grpc.health.v1 at `host:port` reports SERVING for the server as a whole."""
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT)
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def http_ready(address: str) -> bool:
    """Whether GET /readyz at `host:port` answers 200."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{address}/readyz", timeout=_TIMEOUT) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        return False


def healthy(role: str, http_address: str, grpc_address: str) -> bool:
    """Whether a service of this role is healthy: a gateway is asked over HTTP, the others over gRPC."""
    return http_ready(http_address) if role == "gateway" else grpc_serving(grpc_address)

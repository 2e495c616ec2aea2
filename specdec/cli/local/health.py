"""Health checks of services, and a hint on what answers at a wrong address."""

import http.client
import urllib.error
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT = 1.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    # Without its own pool, each check would inherit the growing back-off of earlier checks.
    ("grpc.use_local_subchannel_pool", 1),
)
_ROLES = {
    "specdec.verifier.v1.VerifierService": "a verifier",
    "specdec.drafter.v1.DrafterService": "a drafter",
}
_ASKED = "give the address of the gateway's gRPC API, 127.0.0.1:50051 by default"


def grpc_serving(address: str) -> bool:
    """Whether grpc.health.v1 at `host:port` reports SERVING for the whole server."""
    return bool(_grpc_status(address, "") == health_pb2.HealthCheckResponse.SERVING)


def http_ready(address: str) -> bool:
    """Whether GET /readyz at `host:port` answers 200."""
    return _http_status(address, "/readyz") == 200


def healthy(role: str, http_address: str, grpc_address: str) -> bool:
    """Whether a service of this role is healthy: a gateway is checked over HTTP, others over gRPC."""
    return http_ready(http_address) if role == "gateway" else grpc_serving(grpc_address)


def no_gateway(address: str) -> str:
    """Hint on what answers at `host:port` instead of a gateway's gRPC API; empty if nothing does."""
    if _http_status(address, "/livez") is not None:
        return f"{address} speaks HTTP, not gRPC: {_ASKED}"
    role = next((role for service, role in _ROLES.items() if _grpc_status(address, service) is not None), "")
    return f"{address} is {role}'s: {_ASKED}" if role else ""


def _grpc_status(address: str, service: str) -> int | None:
    """Status of a service by grpc.health.v1; None if there is no answer or the service is unknown."""
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=_TIMEOUT).status)
        except grpc.RpcError:
            return None


def _http_status(address: str, path: str) -> int | None:
    """Status code of the response to a GET request; None without a response."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{address}{path}", timeout=_TIMEOUT) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return None

"""What a person may have meant with an address at which something else answers than was expected."""

import http.client
import urllib.error
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT = 1.0
_ROLES = {
    "specdec.verifier.v1.VerifierService": "a verifier",
    "specdec.drafter.v1.DrafterService": "a drafter",
}
_ASKED = "give the address of the gateway's gRPC API, 127.0.0.1:50051 by default"


def no_gateway(address: str) -> str:
    """What answers at an address, `host:port`, that was taken for a gateway's gRPC API; empty when nothing does."""
    if _speaks_http(address):
        return f"{address} speaks HTTP, not gRPC: {_ASKED}"
    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        role = next((role for service, role in _ROLES.items() if _has(stub, service)), "")
    return f"{address} is {role}'s: {_ASKED}" if role else ""


def _has(stub: health_pb2_grpc.HealthStub, service: str) -> bool:
    try:
        stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=_TIMEOUT)
    except grpc.RpcError:
        return False
    return True


def _speaks_http(address: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{address}/livez", timeout=_TIMEOUT):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False

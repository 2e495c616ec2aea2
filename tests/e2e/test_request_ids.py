"""The id of a request is in its answer and in the logs of all three services."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.e2e.system import NO_DRAFT_IS_LATE, System, running_system, wait_until

ROLES = ("gateway", "verifier", "drafter")
OVER_HTTP, OVER_GRPC = "3f0c9a52-5b5e-4a57-9d0c-0d8f1c0f7a11", "8a1de0c4-93a4-4f2f-9a0e-6c1b2f3d4e55"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(tmp_path_factory.mktemp("system"), "--no-kv", "--gamma", "3", **NO_DRAFT_IS_LATE) as made:
        yield made


def events(system: System, role: str, request_id: str) -> list[str]:
    """Return the names of the log events of a service that have the request id."""
    log = Path(f"/proc/{system.one(role)['pid']}/fd/2").readlink()
    lines = [line for line in log.read_text().splitlines() if f'"request_id": "{request_id}"' in line]
    return [json.loads(line)["event"] for line in lines]


def test_an_id_over_http_is_in_all_logs(system: System) -> None:
    body = json.dumps({"prompt": "def main(", "max_tokens": 24, "temperature": 0, "speculation": {"gamma": 3}}).encode()
    headers = {"content-type": "application/json", "x-request-id": OVER_HTTP}
    with urllib.request.urlopen(urllib.request.Request(f"{system.http}/v1/completions", body, headers)) as reply:
        assert reply.headers["x-request-id"] == OVER_HTTP
        assert json.loads(reply.read())["metrics"]["speculative_decoding"]["num_draft_tokens"]
    wait_until(lambda: "generation_ended" in events(system, "gateway", OVER_HTTP))
    wait_until(lambda: "rpc_ended" in events(system, "verifier", OVER_HTTP))
    wait_until(lambda: "session_opened" in events(system, "drafter", OVER_HTTP))


def test_an_id_over_grpc_is_in_all_logs(system: System) -> None:
    request = pb.GenerateRequest(text="import os", sampling=pb.SamplingOptions(temperature=0))
    request.stop.max_tokens, request.speculation.gamma = 24, 3
    with grpc.insecure_channel(system.grpc) as channel:
        stub = pb_grpc.GenerationServiceStub(channel)
        _, call = stub.Generate.with_call(request, metadata=(("x-request-id", OVER_GRPC),), timeout=60)
    assert ("x-request-id", OVER_GRPC) in [tuple(each) for each in call.trailing_metadata()]
    for role, name in zip(ROLES, ("generation_ended", "rpc_ended", "session_opened"), strict=True):
        wait_until(lambda role=role, name=name: name in events(system, role, OVER_GRPC))

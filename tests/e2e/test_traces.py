"""One request is one trace over gateway, verifier and drafter, with a span for every round."""

import json
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator

import grpc
import pytest

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.e2e.system import NO_DRAFT_IS_LATE, System, running_system
from tests.support.otlp_collector import Collector, Sent, collector

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{CALLER}-01"
OTHER = TRACE[::-1]


@pytest.fixture(scope="module")
def kept() -> Iterator[Collector]:
    with collector() as made:
        yield made


@pytest.fixture(scope="module")
def system(kept: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", kept.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with running_system(tmp_path_factory.mktemp("system"), "--no-kv", "--gamma", "3", **NO_DRAFT_IS_LATE) as made:
            yield made


def of_trace(spans: list[Sent], trace: str, service: str = "") -> list[Sent]:
    return [each for each in spans if each.trace == trace and service in each.service]


def ended(trace: str, name: str) -> Callable[[list[Sent]], bool]:
    """Return whether the trace's outermost span, called `name`, and the parents of all received spans have arrived.

    Each service exports its spans on its own timer, so a child may arrive before its parent.
    """

    def enough(spans: list[Sent]) -> bool:
        own = of_trace(spans, trace)
        known = {each.span.span_id for each in own} | {bytes.fromhex(CALLER)}
        outer = [each for each in own if each.span.parent_span_id.hex() == CALLER]
        whole = all(each.span.parent_span_id in known for each in own)
        return bool(outer) and whole and name in {each.name for each in own}

    return enough


def test_a_request_over_http_is_one_trace(system: System, kept: Collector) -> None:
    body = json.dumps({"prompt": "def main(", "max_tokens": 24, "temperature": 0, "speculation": {"gamma": 3}}).encode()
    headers = {"content-type": "application/json", "traceparent": PARENT}
    with urllib.request.urlopen(urllib.request.Request(f"{system.http}/v1/completions", body, headers)) as reply:
        answer = json.loads(reply.read())
    spans = of_trace(kept.until(ended(TRACE, "draft")), TRACE)
    by_id = {each.span.span_id: each for each in spans}
    names = Counter((each.service, each.name) for each in spans)
    gateway, verifier = "specdec-gateway", "specdec-verifier"
    assert names[gateway, "POST /v1/completions"] == names[gateway, "text_completion demo"] == 1
    assert names[verifier, "specdec.verifier.v1.VerifierService/Serve"] == 1
    (generation,) = [each for each in spans if each.name == "text_completion demo"]
    told = generation.attributes
    assert told["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
    assert told["gen_ai.response.finish_reasons"] == [answer["choices"][0]["finish_reason"]]
    (call,) = [each for each in spans if each.name.endswith("/Serve")]
    assert by_id[call.span.parent_span_id] is generation
    rounds = [each for each in spans if each.name == "round"]
    assert sum(each.attributes["specdec.tokens"] for each in rounds) == answer["usage"]["completion_tokens"]
    for each in spans:
        if each.name in ("round", "draft"):
            assert by_id[each.span.parent_span_id] is call
    assert {each.service for each in spans if each.name == "draft"} == {"specdec-drafter"}


def test_a_request_over_grpc_is_one_trace(system: System, kept: Collector) -> None:
    with grpc.insecure_channel(system.grpc) as channel:
        stub = pb_grpc.GenerationServiceStub(channel)
        request = pb.GenerateRequest(text="def main(", stop=pb.StopOptions(max_tokens=8))
        stub.Generate(request, metadata=(("traceparent", f"00-{OTHER}-{CALLER}-01"),), timeout=60)
    spans = of_trace(kept.until(ended(OTHER, "round")), OTHER)
    assert {"generate_content demo", "round"} <= {each.name for each in spans}

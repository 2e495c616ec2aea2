"""The detail of rounds from a running system agrees with the verdicts, adds up, and changes no token."""

import json
import urllib.request
from dataclasses import asdict
from typing import Any

import grpc
import pytest

from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc
from specdec.wire.report import RoundReport, report_from_pb
from tests.e2e.system import System

TOKENS = 48
MODES = {
    "rejection": common_pb2.VERIFICATION_MODE_REJECTION,
    "block": common_pb2.VERIFICATION_MODE_BLOCK,
    "coupled": common_pb2.VERIFICATION_MODE_COUPLED,
}


def completion(system: System, mode: str, detail: bool, gamma: Any = 4) -> dict[str, Any]:
    body = {
        "prompt": "def main(",
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": 7,
        "speculation": {"mode": mode, "gamma": gamma, "detail": detail},
    }
    request = urllib.request.Request(
        f"{system.http}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def reports(system: System, mode: str) -> list[RoundReport]:
    with grpc.insecure_channel(system.grpc, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = pb.GenerateRequest(
            text="def main(",
            sampling=pb.SamplingOptions(temperature=1.0, seed=7),
            stop=pb.StopOptions(max_tokens=TOKENS),
            speculation=pb.SpeculationOptions(mode=MODES[mode], gamma=4, detail=True),
        )
        events = gateway_pb2_grpc.GenerationServiceStub(channel).StreamGenerate(
            pb.StreamGenerateRequest(request=request), timeout=120
        )
        return [report_from_pb(event.round.report) for event in events if event.HasField("round")]


def check(mode: str, report: dict[str, Any], is_last: bool) -> None:
    drafted = report["drafted"]
    assert report["accepted"] == sum(token["accepted"] for token in drafted)
    assert all(0.0 <= token["p"] <= 1.0 + 1e-9 for token in drafted)
    assert len(drafted) <= report["gamma"] <= 4
    assert report["gamma_reason"] == "fixed" or is_last or report["gamma_reason"] == "room"
    assert report["pass_seconds"] > 0
    assert min(report[f"{part}_seconds"] for part in ("draft", "network", "queue")) >= 0
    if mode == "coupled":
        assert {(token["q"], token["u"], token["threshold"]) for token in drafted} <= {(None, None, None)}
        return
    assert all(0.0 < token["q"] <= 1.0 and 0.0 <= token["u"] < 1.0 for token in drafted)
    below = [token["u"] < token["threshold"] for token in drafted]
    if mode == "rejection":
        assert below == [token["u"] < token["p"] / token["q"] for token in drafted]
        kept = [*below, False].index(False)
    else:
        kept = max((place for place, each in enumerate(below, 1) if each), default=0)
    assert report["accepted"] == kept or is_last  # the limit may cut off accepted tokens


@pytest.mark.parametrize("mode", MODES)
def test_the_numbers_agree_with_the_verdicts_over_http(system: System, mode: str) -> None:
    answer = completion(system, mode, detail=True)
    (choice,) = answer["choices"]
    rounds = choice["rounds"]
    for report in rounds:
        check(mode, report, report is rounds[-1])
    assert "".join(token["text"] for each in rounds for token in each["tokens"]) == choice["text"]
    counts = answer["metrics"]["speculative_decoding"]
    assert counts["num_draft_tokens"] == sum(len(each["drafted"]) for each in rounds)
    assert counts["num_accepted_draft_tokens"] == sum(each["accepted"] for each in rounds)
    assert counts["num_draft_tokens"] > counts["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_each_draft_step_of_egag_has_its_entropy_and_its_gamma(system: System, mode: str) -> None:
    answer = completion(system, mode, detail=True, gamma={"policy": "egag", "min": 1, "max": 6, "ema": 0.0})
    rounds = [each for each in answer["choices"][0]["rounds"] if each["drafted"]]
    assert {each["gamma_reason"] for each in rounds[:-4]} == {"egag"}
    for report in rounds:
        steps = report["drafted"]
        for step in steps:
            most = 6 if report["gamma_reason"] == "egag" else max(step["gamma"], report["gamma"])
            assert 0.0 <= step["h_norm"] <= 1.0
            assert 1 <= step["gamma"] <= most
        if report["gamma_reason"] == "egag":
            assert [step["gamma"] for step in steps] == [round(1 + 5 * (1 - step["h_norm"])) for step in steps]
            assert report["gamma"] == steps[-1]["gamma"] <= len(steps)
            assert all(place < step["gamma"] for place, step in enumerate(steps[:-1], 1))
    assert len({len(report["drafted"]) for report in rounds}) > 1


def test_detail_changes_no_token(system: System) -> None:
    told, silent = (completion(system, "coupled", detail) for detail in (True, False))
    assert told["choices"][0]["text"] == silent["choices"][0]["text"]
    assert "rounds" not in silent["choices"][0]


@pytest.mark.parametrize("mode", MODES)
def test_the_numbers_agree_with_the_verdicts_over_grpc(system: System, mode: str) -> None:
    rounds = [asdict(report) for report in reports(system, mode)]
    for report in rounds:
        check(mode, report, report is rounds[-1])
    assert sum(len(each["tokens"]) for each in rounds) == TOKENS
    assert any(each["drafted"] for each in rounds)

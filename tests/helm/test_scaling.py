"""Autoscalers see demand before it reaches their tier, so a tier at 0 wakes. Loss of Prometheus changes little."""

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.rpc.service import SERVICES as GATEWAY
from specdec.serving.rpc.server import LIVENESS
from tests.helm.engine import CHART, ChartRefused, Helm, Manifest, manifests
from tests.helm.objects import config, named, of_kind, pods

GIVEN = {
    "redis": {"external": {"url": "redis://redis:6379/0"}},
    "metrics": {"prometheusAddress": "http://prometheus:9090"},
}
VERIFIERS = {"tls": {"enabled": False}, "gateway": {"enabled": False}}
DRAFTERS = {**VERIFIERS, "verifier": {"enabled": False}}
OURS = '{namespace="ns",release="prod"}'


def _render(helm: Helm, values: Mapping[str, Any]) -> list[Manifest]:
    return manifests(helm.render(CHART, {**GIVEN, **values}))


def _keda(**values: object) -> dict[str, Any]:
    return {"autoscaling": {"kind": "keda", **values}}


@pytest.mark.parametrize(
    ("tier", "wakes"),
    [
        ("drafter", f"or sum(specdec_gateway_requests_running{OURS})"),
        ("verifier", f"sum(increase(specdec_unserved_requests_total{OURS}[2m]))"),
    ],
)
def test_a_tier_at_zero_is_woken_by_those_before_it(helm: Helm, tier: str, wakes: str) -> None:
    spec = named(_render(helm, {tier: _keda(minReplicas=0)}), "ScaledObject", tier)["spec"]
    assert spec["minReplicaCount"] == 0
    queries = [trigger["metadata"]["query"] for trigger in spec["triggers"]]
    assert wakes in queries[0]
    assert "specdec_drafter_" not in queries[0]
    assert all("specdec_gateway_requests_running" in query for query in queries), "0 without verifiers, and not nothing"


def test_requests_for_another_model_wake_nobody(helm: Helm) -> None:
    models = {"coder": {"addresses": ["coder:50053"], "path": "/models/coder"}}
    values = {"models": models, "tls": {"enabled": False}, "verifier": _keda(minReplicas=0)}
    query = named(_render(helm, values), "ScaledObject", "verifier")["spec"]["triggers"][0]["metadata"]["query"]
    own = OURS.replace("}", ',model="target"}')
    assert query.endswith(f" or sum(increase(specdec_unserved_requests_total{own}[2m]))")


def test_verifiers_alone_are_woken_by_their_values_only(helm: Helm) -> None:
    asked = 'sum(increase(specdec_unserved_requests_total{release="large",model="coder"}[2m]))'
    values = {**VERIFIERS, "verifier": _keda(minReplicas=0, keda={"query": asked})}
    (trigger,) = named(_render(helm, values), "ScaledObject", "verifier")["spec"]["triggers"]
    assert trigger["metadata"]["query"] == asked


@pytest.mark.parametrize(("least", "asked"), [(0, LIVENESS), (1, GATEWAY[0])])
def test_gateways_take_the_requests_that_wake_a_verifier(helm: Helm, least: int, asked: str) -> None:
    """Without verifiers gateways are not ready, and a Service without endpoints counts no requests."""
    template = pods(_render(helm, {"verifier": _keda(minReplicas=least)}))["gateway"]
    assert template["spec"]["containers"][0]["readinessProbe"]["grpc"]["service"] == asked


@pytest.mark.parametrize("tier", ["drafter", "verifier", "gateway"])
def test_a_prometheus_that_does_not_answer_takes_no_capacity_away(helm: Helm, tier: str) -> None:
    spec = named(_render(helm, {tier: _keda(minReplicas=1, maxReplicas=6)}), "ScaledObject", tier)["spec"]
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 6}
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in spec["triggers"]} == {"false"}
    own = {"keda": {"fallback": {"failureThreshold": 5, "replicas": 2}}}
    spec = named(_render(helm, {tier: _keda(minReplicas=1, **own)}), "ScaledObject", tier)["spec"]
    assert spec["fallback"] == {"failureThreshold": 5, "replicas": 2}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"gateway": _keda(minReplicas=0)}, "Nothing could wake a gateway"),
        ({"drafter": _keda(keda={"query": "sum(specdec_drafter_sessions)"})}, "Nothing could wake a drafter"),
        ({"drafter": _keda(keda={"query": "sum(specdec:cost_c:rate5m)"})}, "drafter.autoscaling.keda.query are gone"),
        (
            {"verifier": _keda(minReplicas=0, keda={"query": "sum(specdec_requests_running)"})},
            "Nothing could wake a verifier",
        ),
        ({"verifier": {"autoscaling": {"kind": "hpa", "minReplicas": 0}}}, "keeps at least one pod"),
        (
            {**VERIFIERS, "verifier": _keda(minReplicas=0)},
            "set verifier.autoscaling.keda.query to their series, or",
        ),
        ({**DRAFTERS, "drafter": _keda(minReplicas=1)}, "set drafter.autoscaling.keda.query to their series."),
    ],
)
def test_a_minimum_of_zero_is_refused_where_nothing_wakes(helm: Helm, values: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ChartRefused) as caught:
        _render(helm, values)
    assert sentence in " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    "values",
    [
        {"drafter": _keda(keda={"query": "sum(specdec:cost_c:rate5m) or clamp_max(sum(specdec_requests_running), 1)"})},
        {"drafter": _keda(minReplicas=1, keda={"query": "sum(specdec_drafter_sessions)"})},
        {"drafter": _keda(keda={"query": "sum(specdec_drafter_up)"})},
        {"verifier": _keda(minReplicas=0, keda={"query": "sum(specdec_gateway_requests_running)"})},
        {**VERIFIERS, "verifier": _keda(minReplicas=1), "drafter": _keda()},
        {**DRAFTERS, "drafter": _keda(keda={"query": "sum(specdec_requests_running)"})},
    ],
)
def test_a_minimum_of_zero_is_taken_where_something_wakes(helm: Helm, values: Mapping[str, Any]) -> None:
    assert _render(helm, values)


@pytest.mark.parametrize("case", ["hpa"], indirect=True)
def test_a_gpu_tier_grows_by_what_waits_and_what_is_full(objects: list[Manifest]) -> None:
    def names(tier: str) -> set[str]:
        metrics = named(objects, "HorizontalPodAutoscaler", tier)["spec"]["metrics"]
        return {each.get("pods", {}).get("metric", {}).get("name") or each["resource"]["name"] for each in metrics}

    assert names("verifier") == {"specdec_requests_waiting", "specdec_kv_cache_usage_ratio"}
    assert names("drafter") == {"specdec_drafter_sessions"}
    assert names("gateway") == {"cpu"}


@pytest.mark.parametrize("case", ["hpa"], indirect=True)
def test_the_behaviour_of_an_autoscaler_is_passed_on(objects: list[Manifest]) -> None:
    behavior = named(objects, "HorizontalPodAutoscaler", "verifier")["spec"]["behavior"]
    assert behavior["scaleUp"] == {"stabilizationWindowSeconds": 30}
    assert behavior["scaleDown"] == {"stabilizationWindowSeconds": 600}


@pytest.mark.parametrize("case", ["keda"], indirect=True)
def test_keda_shows_prometheus_its_token_and_headers(objects: list[Manifest]) -> None:
    (authentication,) = of_kind(objects, "TriggerAuthentication")
    targets = authentication["spec"]["secretTargetRef"]
    assert targets == [{"parameter": "bearerToken", "name": "prometheus-token", "key": "token"}]
    for scaled in of_kind(objects, "ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}
            assert trigger["metadata"]["authModes"] == "bearer"
            assert trigger["metadata"]["customHeaders"] == "X-Scope-OrgID=team"


def test_the_ratio_controller_shows_prometheus_its_token_and_headers(full: list[Manifest]) -> None:
    metrics = config(full, "ratio-controller")["metrics"]
    assert (metrics["headers"], metrics["token_file"]) == ({"X-Scope-OrgID": "team"}, "/prometheus/bearer")
    (volume,) = [each for each in pods(full)["ratio-controller"]["spec"]["volumes"] if each["name"] == "prometheus"]
    assert volume["secret"]["secretName"] == "prometheus-token"

"""A release has the configured tiers and finds the tiers of other releases at the configured addresses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.config import GatewaySettings
from gateway.rpc.service import SERVICES
from tests.helm.engine import CHART, ChartRefused, Helm, Manifest, manifests, notes
from tests.helm.objects import config, named, of_kind, pods, selects
from verifier_service.config import VerifierSettings

PLAINTEXT = {"tls": {"enabled": False}}
REDIS = {**PLAINTEXT, "redis": {"external": {"url": "redis://redis:6379/0"}}}
DRAFTERS = "shared-specdec-drafter-headless.ns.svc:50052"
VERIFIERS = "large-specdec-verifier-headless.other.svc:50053"
ONLY_DRAFTERS = {**PLAINTEXT, "verifier": {"enabled": False}, "gateway": {"enabled": False}}
ONLY_GATEWAYS = {
    **REDIS,
    "drafter": {"enabled": False},
    "verifier": {"enabled": False, "external": {"addresses": [VERIFIERS]}},
}
SHARED = {**REDIS, "drafter": {"enabled": False, "external": {"addresses": [DRAFTERS]}}}


def _render(helm: Helm, values: Mapping[str, Any], release: str = "prod") -> list[Manifest]:
    return manifests(helm.render(CHART, values, release))


def _components(objects: list[Manifest]) -> set[str]:
    return {each["metadata"]["labels"]["app.kubernetes.io/component"] for each in objects}


def test_a_release_of_drafters_alone_needs_no_redis_and_has_nothing_else(helm: Helm) -> None:
    everything = {
        "ingress": {"enabled": True},
        "gatewayApi": {"httpRoute": {"enabled": True}, "parentRefs": [{"name": "public"}]},
        "metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
    }
    objects = _render(helm, {**ONLY_DRAFTERS, **everything})
    assert _components(objects) == {"drafter"}
    assert not of_kind(objects, "Ingress", "HTTPRoute", "Job", "Role", "StatefulSet")
    for each in objects:
        if each["kind"] != "PodMonitor":
            kubernetes_validate.validate(each, "1.34", strict=True)


def test_its_notes_say_where_others_find_it(helm: Helm) -> None:
    printed = notes(helm.render(CHART, ONLY_DRAFTERS, "shared"))
    assert DRAFTERS in printed
    assert "port-forward" not in printed


def test_verifiers_add_drafters_of_another_release_or_use_only_those(helm: Helm) -> None:
    assert config(_render(helm, SHARED), "verifier")["discovery"] == {"kind": "dns", "names": [DRAFTERS]}
    both = {**REDIS, "drafter": {"external": {"addresses": [DRAFTERS]}}}
    own = "prod-specdec-drafter-headless.ns.svc:50052"
    assert config(_render(helm, both), "verifier")["discovery"]["names"] == [own, DRAFTERS]


def test_gateways_take_verifiers_of_another_namespace(helm: Helm) -> None:
    objects = _render(helm, ONLY_GATEWAYS)
    discovery = config(objects, "gateway")["discovery"]
    assert (discovery["kind"], discovery["names"]) == ("dns", [VERIFIERS])
    assert not of_kind(objects, "Role")
    assert not pods(objects)["gateway"]["spec"]["automountServiceAccountToken"]


def test_a_second_pool_of_verifiers_is_used_beside_the_first(helm: Helm) -> None:
    pool = _render(helm, {**PLAINTEXT, "gateway": {"enabled": False}}, "pool-b")
    assert _components(pool) == {"drafter", "verifier"}
    external = "pool-b-specdec-verifier-headless.ns.svc:50053"
    gateways = _render(helm, {**REDIS, "verifier": {"external": {"addresses": [external]}}})
    own = "prod-specdec-verifier-headless.ns.svc:50053"
    assert config(gateways, "gateway")["discovery"] == {"kind": "dns", "names": [own, external]}
    (policy,) = [each for each in of_kind(pool, "NetworkPolicy") if each["metadata"]["name"].endswith("-verifier")]
    selector = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert selects(selector, pods(gateways)["gateway"])


def test_the_services_accept_what_they_are_told(helm: Helm, tmp_path: Path) -> None:
    for settings, component, values in (
        (VerifierSettings, "verifier", SHARED),
        (GatewaySettings, "gateway", ONLY_GATEWAYS),
    ):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config(_render(helm, values), component)), encoding="utf-8")
        assert settings.load(path)


def test_shared_drafters_let_the_verifiers_of_every_release_in(helm: Helm) -> None:
    (rule, *_) = named(_render(helm, ONLY_DRAFTERS), "NetworkPolicy", "drafter")["spec"]["ingress"]
    selector = rule["from"][0]["podSelector"]["matchLabels"]
    assert selects(selector, pods(_render(helm, SHARED, "canary"))["verifier"])
    assert not selects(selector, pods(_render(helm, SHARED, "canary"))["gateway"])


@pytest.mark.parametrize(("values", "tier", "port"), [(SHARED, "verifier", 50052), (ONLY_GATEWAYS, "gateway", 50053)])
def test_a_policy_lets_a_tier_out_to_another_release(
    helm: Helm, values: Mapping[str, Any], tier: str, port: int
) -> None:
    egress = named(_render(helm, values), "NetworkPolicy", tier)["spec"]["egress"]
    assert {"ports": [{"port": port}]} in egress


def test_a_peer_of_another_release_is_known_by_its_own_name(helm: Helm) -> None:
    external = {"addresses": [DRAFTERS], "tlsName": "shared-specdec-drafter.ns.svc"}
    tls = {"enabled": True, "certManager": {"issuerRef": {"name": "internal-ca"}}}
    objects = _render(helm, {**REDIS, "tls": tls, "drafter": {"enabled": False, "external": external}})
    assert config(objects, "verifier")["tls"]["peer"] == "shared-specdec-drafter.ns.svc"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {**REDIS, "verifier": {"enabled": False}},
            "Gateways need verifiers: set verifier.enabled=true, or verifier.ext",
        ),
        ({**ONLY_DRAFTERS, "drafter": {"enabled": False}}, "There is nothing to install"),
        ({**ONLY_DRAFTERS, "tls": {}}, "Tiers of several releases need one authority"),
        ({**SHARED, "tls": {}}, "Tiers of several releases need one authority"),
        ({**ONLY_GATEWAYS, "tls": {}}, "Tiers of several releases need one authority"),
        ({"redis": REDIS["redis"], "rbac": {"create": False}}, "Without rbac.create nobody may make certificates"),
        (
            {**ONLY_DRAFTERS, "drafter": {"autoscaling": {"kind": "ratio"}}},
            "and this release has none: set metrics.prom",
        ),
    ],
)
def test_what_cannot_serve_is_refused(helm: Helm, values: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ChartRefused) as caught:
        helm.render(CHART, values)
    assert sentence in " ".join(str(caught.value).split())


def test_drafts_of_another_release_s_drafters_are_required(helm: Helm) -> None:
    (container,) = pods(_render(helm, SHARED))["test"]["spec"]["containers"]
    assert {"name": "DRAFTS", "value": "required"} in container["env"]
    assert "every token is plain" not in notes(helm.render(CHART, SHARED))


def test_a_route_leads_to_every_public_service(helm: Helm) -> None:
    routes = {"grpcRoute": {"enabled": True}, "parentRefs": [{"name": "public"}]}
    (route,) = of_kind(_render(helm, {**REDIS, "gatewayApi": routes}), "GRPCRoute")
    assert {match["method"]["service"] for match in route["spec"]["rules"][0]["matches"]} == set(SERVICES)


def test_a_canary_takes_its_share_of_both_routes(helm: Helm) -> None:
    routes = {
        "httpRoute": {"enabled": True},
        "grpcRoute": {"enabled": True},
        "parentRefs": [{"name": "public"}],
        "canary": {"service": "canary-specdec-gateway", "weight": 5},
    }
    found = of_kind(_render(helm, {**REDIS, "gatewayApi": routes}), "HTTPRoute", "GRPCRoute")
    assert len(found) == 2
    for route, port in zip(sorted(found, key=lambda each: str(each["kind"])), (50051, 8000), strict=True):
        (rule,) = route["spec"]["rules"]
        assert rule["backendRefs"] == [
            {"name": "prod-specdec-gateway", "port": port, "weight": 95},
            {"name": "canary-specdec-gateway", "port": port, "weight": 5},
        ]

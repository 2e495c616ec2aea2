"""Certificates of the chart's own authority are made before pods need them and are mounted where pods look for them."""

import base64
from typing import Any

import pytest
from cryptography import x509

from gateway.certificates.config import CertificateSettings
from gateway.certificates.secrets import make_certificates
from gateway.discovery.cluster import ClusterSettings
from tests.fake_kubernetes import FakeKubernetes
from tests.fake_kubernetes.access import Request, allowed
from tests.helm.engine import CHART, Helm, Manifest, manifests
from tests.helm.objects import config, named, of_kind, pods, tiers

HOOKED = ("ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Job")


def _own(objects: list[Manifest]) -> list[Manifest]:
    """Return the objects that the chart installs to make certificates."""
    return [each for each in objects if each["metadata"]["labels"]["app.kubernetes.io/component"] == "certificates"]


def _rules(objects: list[Manifest]) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = named(objects, "Role", "certificates")["rules"]
    return rules


def _mounted(objects: list[Manifest], tier: str) -> str:
    volumes = {volume["name"]: volume for volume in pods(objects)[tier]["spec"]["volumes"]}
    return str(volumes["tls"]["secret"]["secretName"])


async def test_the_job_makes_what_the_pods_mount_and_may_do_no_more(
    default: list[Manifest], api: FakeKubernetes, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (container,) = pods(default)["certificates"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "gateway.certificates"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    api.rules = _rules(default)
    settings = CertificateSettings.load(None, {"cluster": cluster.model_dump()})
    for _ in range(2):
        await make_certificates(settings)
    for tier in tiers(default):
        data = api.store.get(("", "secrets", "ns"), _mounted(default, tier))["data"]
        read = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dialled = [config(default, caller)["tls"].get("peer") for caller in ("gateway", "verifier")]
        assert f"prod-specdec-{tier}.ns.svc" in names.get_values_for_type(x509.DNSName)
        assert tier == "gateway" or f"prod-specdec-{tier}.ns.svc" in dialled
        assert data["ca.crt"] != data["tls.crt"]


@pytest.mark.parametrize(
    "request_",
    [
        Request("list", "", "secrets", ""),
        Request("get", "", "secrets", "redis-password"),
        Request("update", "", "secrets", "redis-password"),
        Request("delete", "", "secrets", "prod-specdec-authority"),
        Request("get", "", "pods", "any"),
    ],
    ids=lambda request: f"{request.verb}-{request.resource}-{request.name}",
)
def test_the_job_may_not(default: list[Manifest], request_: Request) -> None:
    assert not allowed(_rules(default), request_)


def test_everything_of_it_is_a_hook_and_goes_again(default: list[Manifest]) -> None:
    own = _own(default)
    assert sorted(each["kind"] for each in own) == sorted(HOOKED)
    for each in own:
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    weights = {each["kind"]: int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in own}
    assert all(weights[kind] < weights["Job"] for kind in HOOKED[:-1])


def test_it_calls_the_api_server_alone(default: list[Manifest]) -> None:
    policy = named(default, "NetworkPolicy", "certificates")["spec"]
    assert policy["ingress"] == []
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 5353, 443, 6443}


@pytest.mark.parametrize(
    ("tls", "kinds"),
    [
        ({}, {"Job"}),
        ({"mode": "selfSigned", "certManager": {"issuerRef": {"name": "ca"}}}, {"Job"}),
        ({"certManager": {"issuerRef": {"name": "ca"}}}, {"Certificate"}),
        ({"existingSecrets": {"drafter": "d", "verifier": "v", "gateway": "g"}}, set()),
        ({"enabled": False}, set()),
    ],
    ids=["default", "self-signed", "cert-manager", "existing", "off"],
)
def test_certificates_come_from_one_place(helm: Helm, tls: dict[str, object], kinds: set[str]) -> None:
    values = {"redis": {"dev": {"enabled": True}}, "tests": {"enabled": False}, "tls": tls}
    objects = manifests(helm.render(CHART, values))
    assert {each["kind"] for each in of_kind(objects, "Job", "Certificate")} == kinds
    for tier in tiers(objects):
        assert ("tls" in config(objects, tier)) is (tls.get("enabled") is not False)


def test_two_renders_are_the_same(helm: Helm) -> None:
    values = {"redis": {"dev": {"enabled": True}}}
    assert helm.render(CHART, values) == helm.render(CHART, values)

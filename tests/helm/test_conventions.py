"""Conventions for charts: service accounts, umbrella charts, labels on every pod, sources of models."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.helm.cases import values_of
from tests.helm.engine import CHART, ChartRefused, Helm, Manifest, manifests
from tests.helm.objects import TIERS, config, containers, named, of_kind, pods

REDIS = {"redis": {"external": {"url": "redis://redis:6379/0"}}}


def _render(helm: Helm, values: Mapping[str, Any]) -> list[Manifest]:
    return manifests(helm.render(CHART, {**REDIS, **values}))


@pytest.mark.parametrize("tier", TIERS)
def test_an_account_that_the_chart_does_not_make_is_the_namespace_s_own(helm: Helm, tier: str) -> None:
    found = _render(helm, {tier: {"serviceAccount": {"create": False}}})
    assert pods(found)[tier]["spec"]["serviceAccountName"] == "default"
    accounts = {each["metadata"]["name"] for each in of_kind(found, "ServiceAccount")}
    assert f"prod-specdec-{tier}" not in accounts
    assert len(accounts - {"prod-specdec-certificates"}) == 2


@pytest.mark.parametrize("case", ["s3"], indirect=True)
def test_roles_are_left_to_who_may_make_them(objects: list[Manifest]) -> None:
    assert not of_kind(objects, "Role", "RoleBinding")
    assert pods(objects)["ratio-controller"]["spec"]["automountServiceAccountToken"]


@pytest.mark.parametrize("case", ["s3"], indirect=True)
def test_pull_secrets_are_names_or_objects(objects: list[Manifest]) -> None:
    for component, template in pods(objects).items():
        assert template["spec"]["imagePullSecrets"] == [{"name": "pull"}, {"name": "again"}], component


def test_a_pull_secret_of_another_form_is_refused(helm: Helm) -> None:
    with pytest.raises(ChartRefused, match="imagePullSecrets"):
        _render(helm, {"global": {"imagePullSecrets": [{"secret": "pull"}]}})


@pytest.mark.parametrize("case", ["s3"], indirect=True)
def test_every_pod_takes_labels_and_annotations(objects: list[Manifest]) -> None:
    templates = pods(objects)
    for component in ("valkey", "ratio-controller", "test"):
        assert templates[component]["metadata"]["labels"]["sidecar.istio.io/inject"] == "false", component
    notes = {"valkey-kv": "blocks", "ratio-controller": "ratio", "test": "test"}
    for component, note in notes.items():
        assert templates[component]["metadata"]["annotations"]["example.com/note"] == note


def test_a_deployment_takes_annotations_a_scheduler_and_dns(full: list[Manifest]) -> None:
    assert named(full, "Deployment", "drafter")["metadata"]["annotations"] == {"reloader.stakater.com/auto": "true"}
    spec = pods(full)["drafter"]["spec"]
    assert spec["schedulerName"] == "gang"
    assert spec["dnsConfig"] == {"options": [{"name": "ndots", "value": "1"}]}


def test_disk_is_requested_for_what_is_written_to_it(helm: Helm, full: list[Manifest]) -> None:
    def requested(objects: list[Manifest], tier: str) -> str:
        disk: str = pods(objects)[tier]["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"]
        return disk

    (tmp,) = [volume for volume in pods(full)["drafter"]["spec"]["volumes"] if volume["name"] == "tmp"]
    assert tmp["emptyDir"]["sizeLimit"] == requested(full, "drafter") == "4Gi"
    hub = {"source": "huggingFace", "huggingFace": {"repository": "owner/model"}, "cache": {"size": "200Gi"}}
    own = {"requests": {"ephemeral-storage": "9Gi"}}
    found = _render(helm, {"verifier": {"model": hub}, "gateway": {"model": hub, "resources": own}})
    assert (requested(found, "verifier"), requested(found, "gateway")) == ("200Gi", "9Gi")


def test_a_load_balancer_is_told_what_it_takes(full: list[Manifest]) -> None:
    spec = named(full, "Service", "gateway")["spec"]
    assert (spec["loadBalancerClass"], spec["externalTrafficPolicy"]) == ("internal", "Local")
    assert spec["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert [port.get("nodePort") for port in spec["ports"]] == [30051, None]


def test_the_service_of_callers_has_the_families_of_the_values(helm: Helm) -> None:
    """Discovery takes each address of a headless Service for a pod, so all other Services keep one family."""
    families = {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    services = of_kind(_render(helm, {"gateway": {"service": families}}), "Service")
    specs = {each["metadata"]["name"]: each["spec"] for each in services}
    given = {name: {key: spec[key] for key in families if key in spec} for name, spec in specs.items()}
    assert given.pop("prod-specdec-gateway") == families
    assert "prod-specdec-verifier-headless" in given
    assert not any(given.values())
    assert not [each for each in of_kind(_render(helm, {}), "Service") if families.keys() & each["spec"].keys()]


@pytest.mark.parametrize(
    "families",
    [{"ipFamilyPolicy": "DualStack"}, {"ipFamilies": ["ipv6"]}, {"ipFamilies": ["IPv6", "IPv6"]}],
)
def test_families_that_kubernetes_does_not_know_are_refused(helm: Helm, families: Mapping[str, Any]) -> None:
    with pytest.raises(ChartRefused, match=next(iter(families))):
        _render(helm, {"gateway": {"service": families}})


def test_an_ingress_has_several_hosts_and_certificates(full: list[Manifest]) -> None:
    spec = named(full, "Ingress", "gateway")["spec"]
    assert [rule["host"] for rule in spec["rules"]] == ["specdec.example.com", "api.example.com"]
    assert len({str(rule["http"]) for rule in spec["rules"]}) == 1
    assert [each["secretName"] for each in spec["tls"]] == ["public-tls", "api-tls"]
    assert spec["tls"][0]["hosts"] == ["specdec.example.com", "api.example.com"]


@pytest.mark.parametrize("case", ["oci"], indirect=True)
def test_a_model_is_mounted_from_an_image(objects: list[Manifest]) -> None:
    spec = pods(objects)["verifier"]["spec"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "models"]
    (drafter,) = [volume for volume in pods(objects)["drafter"]["spec"]["volumes"] if volume["name"] == "models"]
    assert drafter["image"]["reference"] == "registry.example.com/models/small:1"
    assert volume["image"] == {"reference": "registry.example.com/models/large:1", "pullPolicy": "IfNotPresent"}
    assert config(objects, "verifier")["model"]["path"] == "/models/large"
    assert "initContainers" not in spec


@pytest.mark.parametrize("case", ["s3"], indirect=True)
def test_a_model_is_downloaded_from_a_bucket(objects: list[Manifest]) -> None:
    (drafter,) = pods(objects)["drafter"]["spec"]["initContainers"]
    assert drafter["image"] == "amazon/aws-cli:2.22.0"
    assert drafter["args"][-2:] == ["s3://models/small", config(objects, "drafter")["model"]["path"]]
    assert "--endpoint-url=http://minio:9000" in drafter["args"]
    assert "--include=*.safetensors" in drafter["args"]
    assert drafter["envFrom"] == [{"secretRef": {"name": "minio"}}]
    (gateway,) = pods(objects)["gateway"]["spec"]["initContainers"]
    assert "--include=*.safetensors" not in gateway["args"]
    assert gateway["args"][-1] == "/models/models--large--v1"
    egress = named(objects, "NetworkPolicy", "drafter")["spec"]["egress"]
    assert {443, 9000} <= {port["port"] for rule in egress for port in rule["ports"]}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"verifier": {"gpu": {"enabled": True, "count": 2}}}, "verifier.gpu.count is 2, and one process uses one"),
        ({"drafter": {"model": {"source": "oci", "path": "small"}}}, "set drafter.model.oci.reference"),
        ({"drafter": {"model": {"source": "oci", "path": "/small"}}}, "a path inside the OCI image"),
        ({"gateway": {"model": {"source": "s3"}}}, "set gateway.model.s3.uri"),
    ],
)
def test_what_is_missing_or_of_no_use_is_refused(helm: Helm, values: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ChartRefused) as caught:
        _render(helm, values)
    assert sentence in " ".join(str(caught.value).split())


def test_a_cluster_must_know_every_field_outside_alpha(helm: Helm) -> None:
    assert 'kubeVersion: ">=1.30.0-0"' in (CHART / "Chart.yaml").read_text(encoding="utf-8")


def test_one_value_names_the_registry_of_the_product_s_images_alone(helm: Helm) -> None:
    values = {
        **values_of("minimal-cpu"),
        "imageRegistry": "registry.example/team",
        "drafter": {"image": {"registry": "own"}},
    }
    images = {
        component: [each["image"] for each in containers(template)]
        for component, template in pods(manifests(helm.render(CHART, values))).items()
    }
    assert images["gateway"] == images["test"] == ["registry.example/team/specdec/gateway:0.1.0"]
    assert images["verifier"] == ["registry.example/team/specdec/verifier:0.1.0"]
    assert images["drafter"] == ["own/specdec/drafter:0.1.0"]
    assert images["valkey"] == images["valkey-kv"] == ["valkey/valkey:8.1.4-alpine"]

"""Labels, ports, volumes, addresses and settings agree between the objects that refer to each other."""

import re

import pytest

from drafter_service.service import SERVICE as DRAFTER
from gateway.rpc.service import SERVICES as GATEWAY
from specdec.serving.addresses import split_address
from specdec.serving.rpc.server import LIVENESS
from tests.helm.engine import CHART, Helm, Manifest, manifests
from tests.helm.objects import TIERS, config, containers, named, of_kind, pods, selects, tiers
from verifier_service.service import SERVICE as VERIFIER

HEALTH_NAMES = {"", LIVENESS, DRAFTER, VERIFIER, *GATEWAY}


def test_pods_that_have_no_placement_of_their_own_go_where_gateways_go(helm: Helm) -> None:
    tolerations = [{"key": "pool", "operator": "Exists"}]
    values = {
        "gateway": {"tolerations": tolerations, "podSecurityContext": {"runAsUser": None}},
        "redis": {"dev": {"enabled": True}, "kv": {"dev": {"enabled": True}}},
        "drafter": {"autoscaling": {"kind": "ratio"}},
    }
    found = pods(manifests(helm.render(CHART, values)))
    for component in ("gateway", "ratio-controller", "test", "valkey", "valkey-kv"):
        assert found[component]["spec"]["tolerations"] == tolerations, component
        assert "runAsUser" not in found[component]["spec"]["securityContext"], component


def test_selectors_choose_the_pods_they_mean_and_no_others(objects: list[Manifest]) -> None:
    templates = pods(objects)
    for each in of_kind(objects, "Deployment", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        spec = each["spec"]
        selector = (spec.get("selector") or spec.get("podSelector")).copy()
        chosen = {
            name for name, template in templates.items() if selects(selector.get("matchLabels", selector), template)
        }
        assert chosen == {component}, each["metadata"]["name"]


def test_ports_agree_from_the_settings_to_the_service(objects: list[Manifest]) -> None:
    for tier in tiers(objects):
        settings = config(objects, tier)
        kinds = ("address", "http", "health", "admin")
        listens = {name: split_address(settings[name])[1] for name in kinds if name in settings}
        container = pods(objects)[tier]["spec"]["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {"grpc" if name == "address" else name: port for name, port in listens.items()}
        service = named(objects, "Service", tier)["spec"]["ports"]
        assert {(port["name"], port["targetPort"], port["port"]) for port in service} == {
            (name, name, ports[name]) for name in ("grpc", "http")
        }


def test_probes_ask_the_plaintext_port_for_names_that_exist(objects: list[Manifest]) -> None:
    for tier in tiers(objects):
        container = pods(objects)[tier]["spec"]["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        probes = [container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]
        asked = [probe["grpc"] for probe in probes if "grpc" in probe]
        assert {probe["port"] for probe in asked} == {ports["health"]}
        assert {probe["service"] for probe in asked} <= HEALTH_NAMES


def test_metrics_and_details_are_at_no_port_that_clients_reach(full: list[Manifest]) -> None:
    gateway = named(full, "Service", "gateway")["spec"]
    assert gateway["type"] == "LoadBalancer"
    assert {port["name"] for port in gateway["ports"]} == {"grpc", "http"}
    (admin,) = named(full, "Service", "gateway-admin")["spec"]["ports"]
    (endpoint,) = named(full, "ServiceMonitor", "gateway")["spec"]["endpoints"]
    assert endpoint["port"] == admin["name"] == admin["targetPort"] == "admin"
    assert config(full, "gateway")["admin"] == f"[::]:{admin['port']}"


def test_every_listener_of_a_pod_accepts_both_address_families(full: list[Manifest]) -> None:
    listeners = {
        (tier, name): address
        for tier in (*TIERS, "ratio-controller")
        for name, address in config(full, tier).items()
        if name in ("address", "http", "health", "admin")
    }
    assert len(listeners) == 11
    assert all(split_address(address)[0] == "::" for address in listeners.values()), listeners


def test_services_share_the_token_of_a_secret(helm: Helm) -> None:
    values = {"redis": {"dev": {"enabled": True}}, "token": {"existingSecret": "door"}}
    found = pods(manifests(helm.render(CHART, values)))
    for tier in TIERS:
        given = {each["name"]: each for each in found[tier]["spec"]["containers"][0]["env"]}
        secret = given[f"SPECDEC_{tier.upper()}_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert secret == {"name": "door", "key": "token"}


def test_a_probe_is_replaced_as_a_whole(full: list[Manifest]) -> None:
    container = pods(full)["drafter"]["spec"]["containers"][0]
    assert container["livenessProbe"] == {"httpGet": {"path": "/livez", "port": "http", "scheme": "HTTP"}}


def test_readiness_is_not_liveness(default: list[Manifest]) -> None:
    for tier, template in pods(default).items():
        if tier in TIERS:
            container = template["spec"]["containers"][0]
            assert container["livenessProbe"]["grpc"]["service"] == LIVENESS
            assert container["readinessProbe"]["grpc"]["service"] in {DRAFTER, VERIFIER, GATEWAY[0]}


def test_mounts_have_volumes_and_volumes_are_mounted(objects: list[Manifest]) -> None:
    for component, template in pods(objects).items():
        volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
        claims = {"data"} if component == "valkey" else set()
        mounted = {mount["name"] for container in containers(template) for mount in container.get("volumeMounts", [])}
        assert mounted == volumes | claims, component


def test_files_that_the_settings_name_are_mounted(objects: list[Manifest]) -> None:
    for tier in tiers(objects):
        container = pods(objects)[tier]["spec"]["containers"][0]
        mounts = tuple(f"{mount['mountPath']}/" for mount in container["volumeMounts"])
        settings = config(objects, tier)
        tls = settings.get("tls", {})
        files = [*(tls[name] for name in ("certificate", "key", "ca") if name in tls), settings["model"]["path"]]
        for variable in container["env"]:
            files += re.findall(r"ssl_\w+=([^&]+)", variable.get("value", ""))
        for file in files:
            assert file.startswith((*mounts, "/app/models/")), file


def test_replicas_are_left_to_who_owns_them(objects: list[Manifest]) -> None:
    owners = {
        each["spec"]["scaleTargetRef"]["name"]: each["kind"]
        for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    }
    if "ratio-controller" in pods(objects):
        scaled = config(objects, "ratio-controller")["deployment"]
        assert scaled not in owners, "two owners"
        owners[scaled] = "ratio"
    for deployment in of_kind(objects, "Deployment"):
        assert ("replicas" not in deployment["spec"]) is (deployment["metadata"]["name"] in owners)


def test_gateways_watch_the_headless_service_of_the_verifiers(default: list[Manifest]) -> None:
    discovery = config(default, "gateway")["discovery"]
    headless = named(default, "Service", "verifier-headless")
    assert discovery["names"] == [headless["metadata"]["name"]]
    assert discovery["port"] in {port["name"] for port in headless["spec"]["ports"]}
    assert headless["spec"]["clusterIP"] == "None"


def test_verifiers_resolve_the_headless_service_of_the_drafters(objects: list[Manifest]) -> None:
    if "drafter" not in tiers(objects):
        assert "discovery" not in config(objects, "verifier")
        return
    (name,) = config(objects, "verifier")["discovery"]["names"]
    headless = named(objects, "Service", "drafter-headless")
    host, port = split_address(name)
    assert host == f"{headless['metadata']['name']}.ns.svc"
    assert port in {each["port"] for each in headless["spec"]["ports"]}


def test_peers_look_for_the_name_that_the_certificate_has(full: list[Manifest]) -> None:
    names = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["dnsNames"]
        for each in of_kind(full, "Certificate")
    }
    assert config(full, "gateway")["tls"]["peer"] in names["verifier"]
    assert config(full, "verifier")["tls"]["peer"] in names["drafter"]
    for each in of_kind(full, "Certificate"):
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        secrets = [
            volume["secret"]["secretName"] for volume in pods(full)[component]["spec"]["volumes"] if "secret" in volume
        ]
        assert each["spec"]["secretName"] in secrets


def test_gpu_tiers_ask_for_the_accelerator_that_is_named(full: list[Manifest]) -> None:
    wanted = {tier: pods(full)[tier]["spec"]["containers"][0]["resources"] for tier in ("drafter", "verifier")}
    assert wanted["drafter"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"
    assert wanted["verifier"]["limits"]["nvidia.com/gpu"] == wanted["verifier"]["requests"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("case", ["dra"], indirect=True)
def test_accelerators_are_claimed_where_a_template_is_named(objects: list[Manifest]) -> None:
    for tier, template in {"drafter": "small-gpu", "verifier": "large-gpu"}.items():
        spec = pods(objects)[tier]["spec"]
        (claim,) = spec["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == template
        resources = spec["containers"][0]["resources"]
        assert resources["claims"] == [{"name": claim["name"]}]
        assert resources["limits"].keys() == {"memory"}

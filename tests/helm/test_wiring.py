"""Labels, ports, volumes, addresses and settings of one object are those that the others count on."""

import re
from pathlib import Path
from typing import Any

import pytest

from drafter_service.config import DrafterSettings
from drafter_service.service import SERVICE as DRAFTER
from gateway.config import GatewaySettings
from gateway.ratio_controller.config import RatioSettings
from gateway.rpc.service import SERVICES as GATEWAY
from gateway.store.redis_client import connect
from specdec.serving.server import LIVENESS
from specdec.serving.settings import Settings, split_address
from tests.helm.engine import CHART, Helm, Manifest, manifests
from tests.helm.objects import TIERS, config, containers, named, of_kind, pods, selects, tiers
from verifier_service.config import VerifierSettings
from verifier_service.service import SERVICE as VERIFIER

SETTINGS: dict[str, type[Settings]] = {
    "drafter": DrafterSettings,
    "verifier": VerifierSettings,
    "gateway": GatewaySettings,
    "ratio-controller": RatioSettings,
}
HEALTH_NAMES = {"", LIVENESS, DRAFTER, VERIFIER, *GATEWAY}


def _load(objects: list[Manifest], component: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings as the container's process would read them: its ConfigMap and its environment."""
    path = folder / f"{component}.yaml"
    path.write_text(named(objects, "ConfigMap", component)["data"]["config.yaml"], encoding="utf-8")
    container = pods(objects)[component]["spec"]["containers"][0]
    known = {"REDIS_PASSWORD": "secret", "REDIS_KV_PASSWORD": "other-secret"}
    for variable in container.get("env", []):
        default = known.get(variable["name"], "redis://from-a-secret:6379/0")
        value = variable.get("value", default)
        monkeypatch.setenv(variable["name"], re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], value))
    return SETTINGS[component].load(path)


def test_the_services_accept_their_configuration(
    objects: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    components = [component for component in SETTINGS if component in pods(objects)]
    assert {"verifier", "gateway"} <= set(components)
    for component in components:
        assert _load(objects, component, tmp_path, monkeypatch)


@pytest.mark.parametrize("case", ["full", "default", "minimal-cpu", "openshift", "mtls-redis-tls"], indirect=True)
def test_the_gateway_can_dial_the_session_store(
    objects: list[Manifest], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _load(objects, "gateway", tmp_path, monkeypatch)
    assert isinstance(settings, GatewaySettings)
    expected = {
        "full": "rediss://:secret@redis.example.com:6380/0?ssl_ca_certs=/redis-ca/ca.crt",
        "default": "redis://redis:6379/0",
        "minimal-cpu": "redis://prod-specdec-valkey:6379/0",
        "openshift": "redis://from-a-secret:6379/0",
        "mtls-redis-tls": "rediss+sentinel://specdec:secret@sentinel-0.redis:26379,sentinel-1.redis:26379/sessions/0"
        "?ssl_ca_certs=/redis-ca/ca.crt&ssl_certfile=/redis-client/tls.crt&ssl_keyfile=/redis-client/tls.key",
    }
    assert settings.redis_url == expected[case]
    if "sentinel" not in settings.redis_url:
        assert connect(settings.redis_url)


@pytest.mark.parametrize("case", ["default", "minimal-cpu", "kv"], indirect=True)
def test_the_gateway_can_dial_the_store_of_blocks(
    objects: list[Manifest], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _load(objects, "gateway", tmp_path, monkeypatch)
    assert isinstance(settings, GatewaySettings)
    expected = {
        "default": "",
        "minimal-cpu": "redis://prod-specdec-valkey-kv:6379/0",
        "kv": "rediss://specdec:other-secret@blocks.example.com:6390/0?ssl_ca_certs=/redis-kv-ca/ca.crt"
        "&ssl_certfile=/redis-kv-client/tls.crt&ssl_keyfile=/redis-kv-client/tls.key",
    }
    assert settings.kv.redis_url == expected[case]
    assert settings.kv.redis_url != settings.redis_url
    if settings.kv.redis_url:
        assert connect(settings.kv.redis_url)
    assert settings.kv.block_tokens == (512 if case == "kv" else 256)


@pytest.mark.parametrize("case", ["minimal-cpu"], indirect=True)
def test_sessions_are_never_evicted_and_blocks_are(objects: list[Manifest]) -> None:
    def policy(component: str) -> str:
        arguments = pods(objects)[component]["spec"]["containers"][0]["args"]
        return str(arguments[arguments.index("--maxmemory-policy") + 1])

    assert (policy("valkey"), policy("valkey-kv")) == ("noeviction", "allkeys-lru")
    kept = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "StatefulSet")}
    assert [name for name, spec in kept.items() if "volumeClaimTemplates" in spec] == ["prod-specdec-valkey"]


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


def test_a_value_of_config_reaches_its_service(
    full: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = _load(full, "drafter", tmp_path, monkeypatch)
    assert isinstance(drafter, DrafterSettings)
    assert (drafter.ahead, drafter.model.dtype, drafter.model.name, drafter.log.level) == (
        8,
        "bfloat16",
        "small",
        "debug",
    )


@pytest.mark.parametrize("case", ["ratio-controller"], indirect=True)
def test_the_ratio_controller_is_told_what_drafts_must_bring(
    objects: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _load(objects, "ratio-controller", tmp_path, monkeypatch)
    assert isinstance(settings, RatioSettings)
    scaling = settings.scaling
    assert (scaling.minimum, scaling.maximum, scaling.min_speedup, scaling.draft_batch) == (0, 16, 1.2, 32)


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
        listens = {name: split_address(settings[name])[1] for name in ("address", "http", "health") if name in settings}
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
        assert {probe["port"] for probe in asked} == {ports.get("health", ports["grpc"])}
        assert {probe["service"] for probe in asked} <= HEALTH_NAMES


def test_a_probe_is_replaced_as_a_whole(full: list[Manifest]) -> None:
    container = pods(full)["drafter"]["spec"]["containers"][0]
    assert container["livenessProbe"] == {"httpGet": {"path": "/livez", "port": "http"}}


def test_readiness_is_not_liveness(default: list[Manifest]) -> None:
    for tier, template in pods(default).items():
        if tier in TIERS:
            container = template["spec"]["containers"][0]
            assert container["livenessProbe"]["grpc"]["service"] == LIVENESS
            assert container["readinessProbe"]["grpc"]["service"] in {DRAFTER, VERIFIER, GATEWAY[0]}


def test_a_pod_that_ends_has_time_to_drain(objects: list[Manifest], tmp_path: Path, monkeypatch: Any) -> None:
    for tier in tiers(objects):
        spec = pods(objects)[tier]["spec"]
        stop = spec["containers"][0]["lifecycle"]["preStop"]
        pause = stop["sleep"]["seconds"] if "sleep" in stop else int(stop["exec"]["command"][1])
        settings = _load(objects, tier, tmp_path, monkeypatch)
        drain = 2.0
        if isinstance(settings, VerifierSettings):
            drain = settings.drain_seconds
        if isinstance(settings, GatewaySettings):
            drain = settings.drain.settle + settings.drain.limit
        assert spec["terminationGracePeriodSeconds"] > pause + drain


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
    for role in of_kind(objects, "Role"):
        for rule in role["rules"]:
            if "deployments/scale" in rule["resources"]:
                assert not owners.keys() & set(rule["resourceNames"]), "two owners"
                owners |= dict.fromkeys(rule["resourceNames"], "ratio")
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
    assert wanted["verifier"]["limits"]["nvidia.com/gpu"] == wanted["verifier"]["requests"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize("case", ["dra"], indirect=True)
def test_accelerators_are_claimed_where_a_template_is_named(objects: list[Manifest]) -> None:
    for tier, template in {"drafter": "small-gpu", "verifier": "large-gpu"}.items():
        spec = pods(objects)[tier]["spec"]
        (claim,) = spec["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == template
        resources = spec["containers"][0]["resources"]
        assert resources["claims"] == [{"name": claim["name"]}]
        assert resources["limits"].keys() == {"memory"}

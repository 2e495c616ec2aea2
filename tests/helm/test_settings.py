"""A container's process reads the configured values from its ConfigMap and environment."""

import re
from pathlib import Path

import pytest

from drafter_service.config import DrafterSettings
from gateway.config import GatewaySettings
from gateway.ratio_controller.config import RatioSettings
from gateway.store.redis_client import connect
from specdec.serving.settings import Settings
from tests.helm.engine import CHART, Helm, Manifest, manifests
from tests.helm.objects import named, of_kind, pods, tiers
from verifier_service.config import VerifierSettings

SETTINGS: dict[str, type[Settings]] = {
    "drafter": DrafterSettings,
    "verifier": VerifierSettings,
    "gateway": GatewaySettings,
    "ratio-controller": RatioSettings,
}


def _load(objects: list[Manifest], component: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Load the settings as the container's process does, from its ConfigMap and environment."""
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


@pytest.mark.parametrize("case", ["default", "minimal-cpu", "plain", "kv"], indirect=True)
def test_the_gateway_can_dial_the_store_of_blocks(
    objects: list[Manifest], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _load(objects, "gateway", tmp_path, monkeypatch)
    assert isinstance(settings, GatewaySettings)
    expected = {
        "default": "redis://prod-specdec-valkey-kv:6379/0",
        "minimal-cpu": "redis://prod-specdec-valkey-kv:6379/0",
        "plain": "",
        "kv": "rediss://specdec:other-secret@blocks.example.com:6390/0?ssl_ca_certs=/redis-kv-ca/ca.crt"
        "&ssl_certfile=/redis-kv-client/tls.crt&ssl_keyfile=/redis-kv-client/tls.key",
    }
    assert settings.kv.redis_url == expected[case]
    assert settings.kv.redis_url != settings.redis_url
    if settings.kv.redis_url:
        assert connect(settings.kv.redis_url)
    assert settings.kv.block_tokens == (512 if case == "kv" else 64)


def test_the_chart_s_store_of_blocks_yields_to_a_named_one_and_to_none(helm: Helm) -> None:
    def servers(**kv: object) -> set[str]:
        redis = {"external": {"url": "redis://redis:6379/0"}, "kv": kv}
        found = manifests(helm.render(CHART, {"redis": redis}))
        return {each["metadata"]["name"] for each in of_kind(found, "StatefulSet")}

    assert {name.rpartition("specdec-")[2] for name in servers()} == {"valkey-kv"}
    assert not servers(external={"url": "redis://blocks:6379/0"})
    assert not servers(external={"existingSecret": "blocks"})
    assert not servers(dev={"enabled": False})


def test_the_chart_s_own_store_of_blocks_is_bounded(default: list[Manifest]) -> None:
    (container,) = pods(default)["valkey-kv"]["spec"]["containers"]
    arguments = container["args"]
    assert arguments[arguments.index("--maxmemory") + 1] == "512mb"
    assert container["resources"]["limits"]["memory"] == "700Mi"


@pytest.mark.parametrize("case", ["minimal-cpu"], indirect=True)
def test_sessions_are_never_evicted_and_blocks_are(objects: list[Manifest]) -> None:
    def policy(component: str, setting: str = "--maxmemory-policy") -> str:
        arguments = pods(objects)[component]["spec"]["containers"][0]["args"]
        return str(arguments[arguments.index(setting) + 1])

    assert (policy("valkey"), policy("valkey-kv")) == ("noeviction", "allkeys-lru")
    assert (policy("valkey", "--protected-mode"), policy("valkey-kv", "--protected-mode")) == ("no", "no")
    kept = {each["metadata"]["name"]: each["spec"] for each in of_kind(objects, "StatefulSet")}
    assert [name for name, spec in kept.items() if "volumeClaimTemplates" in spec] == ["prod-specdec-valkey"]


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


def test_a_pod_that_ends_has_time_to_drain(
    objects: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("sources", [[], ["suffix", "ngram"]])
def test_the_chart_names_the_sources_that_guess_drafts(
    helm: Helm, sources: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = manifests(
        helm.render(CHART, {"redis": {"dev": {"enabled": True}}, "speculation": {"drafterLocal": sources}})
    )
    settings = _load(objects, "drafter", tmp_path, monkeypatch)
    assert isinstance(settings, DrafterSettings)
    assert settings.local == tuple(sources)


@pytest.mark.parametrize("local", [[], ["ngram"]])
def test_the_chart_lets_sources_draw_from_their_counts(
    helm: Helm, local: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"redis": {"dev": {"enabled": True}}, "speculation": {"sampled": True, "drafterLocal": local}}
    objects = manifests(helm.render(CHART, values))
    for tier in ("verifier", "drafter"):
        settings = _load(objects, tier, tmp_path, monkeypatch)
        assert isinstance(settings, VerifierSettings | DrafterSettings)
        assert settings.sources.sampled
    assert isinstance(settings, DrafterSettings)
    assert settings.local == tuple(local)

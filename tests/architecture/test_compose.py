"""The compose file gives each service settings that it accepts, and starts each store for its data."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from redis import Redis

from drafter_service.config import DrafterSettings
from gateway.config import GatewaySettings
from specdec.cli.local import ports, valkey
from specdec.cli.local.launch import wait_for_store
from specdec.cli.local.processes import ChildCommand, Children
from specdec.cli.local.signals import Stop
from specdec.serving.settings import Settings
from tests.architecture.image import ROOT
from verifier_service.config import VerifierSettings

SETTINGS: dict[str, type[Settings]] = {
    "drafter": DrafterSettings,
    "verifier": VerifierSettings,
    "gateway": GatewaySettings,
}


def test_compose_tells_services_what_they_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for name, settings in SETTINGS.items():
        prefix = settings.model_config["env_prefix"]
        for variable, value in compose[name]["environment"].items():
            assert variable.startswith(prefix)
            monkeypatch.setenv(variable, _interpolated(value))
        loaded = settings.load()
        given = {variable.removeprefix(prefix).lower().partition("__")[0] for variable in compose[name]["environment"]}
        assert given <= loaded.model_fields_set
        assert (
            compose[name]["build"]["dockerfile"]
            == f"{'gateway' if name == 'gateway' else name + '_service'}/Dockerfile"
        )
        assert compose[name]["read_only"]
        assert compose[name]["cap_drop"] == ["ALL"]


def test_compose_gives_all_services_one_token() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    tokens = {compose[name]["environment"][f"SPECDEC_{name.upper()}_TOKEN"] for name in SETTINGS}
    assert tokens == {"${SPECDEC_TOKEN:-specdec}"}


def test_compose_declares_every_network_that_it_names() -> None:
    """Some compose implementations create no `default` network if other networks are declared."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    named = {network for service in compose["services"].values() for network in service.get("networks", ["default"])}
    assert named <= compose["networks"].keys()


def test_the_profile_metrics_reads_every_service_where_it_serves(tmp_path: Path) -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    content = compose["configs"]["prometheus"]["content"]
    read = {}
    for job in yaml.safe_load(content)["scrape_configs"]:
        (names,) = job["dns_sd_configs"]
        read[job["job_name"]] = (names["names"], names["port"])
        labels = {rule["target_label"] for rule in job["relabel_configs"]}
        assert labels == {"namespace", "release", "component", "pod"}, "what the dashboard selects by"
    for name in SETTINGS:
        port = int(compose["services"][name]["environment"][f"SPECDEC_{name.upper()}_HTTP"].rpartition(":")[2])
        assert read[name] == ([name], port)
    for name in ("prometheus", "grafana"):
        service = compose["services"][name]
        assert service["profiles"] == ["metrics"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert {each["source"] for each in service["configs"]} <= compose["configs"].keys()
    assert (ROOT / compose["configs"]["dashboard"]["file"]).is_file()
    if promtool := shutil.which("promtool", path=os.pathsep.join((str(ROOT / "build"), os.environ["PATH"]))):
        (tmp_path / "prometheus.yml").write_text(content, encoding="utf-8")
        command = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_compose_gives_each_store_what_it_holds(tmp_path: Path) -> None:
    """Start each store with its own arguments, on the server that `specdec up` would use."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    gateway = compose["services"]["gateway"]["environment"]
    kept = {
        "valkey": {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"},
        "valkey-kv": {"maxmemory-policy": "allkeys-lru", "appendonly": "no", "maxmemory": str(512 * 2**20)},
    }
    urls = {"valkey": gateway["SPECDEC_GATEWAY_REDIS_URL"], "valkey-kv": gateway["SPECDEC_GATEWAY_KV__REDIS_URL"]}
    for name, expected in kept.items():
        service, port = compose["services"][name], ports.free("127.0.0.1")
        arguments = [_interpolated(argument) for argument in service["command"][1:]]
        arguments[arguments.index("--dir") + 1] = str(tmp_path)
        argv = (str(valkey.resolve().path), *arguments, "--port", str(port), "--bind", "127.0.0.1")
        url = _interpolated(urls[name]).replace(f"@{name}:6379", f"@127.0.0.1:{port}")
        with Children(grace=5) as children:
            store = children.start(ChildCommand(name, "redis", argv, tmp_path / f"{name}.log", ""), os.environ)
            wait_for_store(store, url, Stop())
            with Redis.from_url(url, decode_responses=True) as client:
                found = client.config_get("*")
            assert not valkey.answers(url.replace("//:", "//:x"))
        assert {setting: found[setting] for setting in expected} == expected
        assert service["networks"] == ["stores"]
    assert compose["networks"]["stores"]["internal"]
    assert compose["services"]["valkey"]["volumes"] == ["sessions:/data"]
    assert "sessions" in compose["volumes"]


def _interpolated(value: str) -> str:
    """Return the value as Docker Compose reads it if no variable is set."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)

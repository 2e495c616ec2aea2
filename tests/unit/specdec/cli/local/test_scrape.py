"""The scrape configuration lists the metrics address of every process, and only its owner can read it."""

from pathlib import Path

import pytest
import yaml

from specdec.cli.local import plan
from specdec.cli.local.plan import Addresses
from specdec.cli.local.scrape import write_scrape_config
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError

ADDRESSES = Addresses(["h:1", "h:2"], ["h:3", "h:4"], ["h:5"], ["h:6"], ["h:7"], ["h:8"])
ADDRESSES_OF_ONE = Addresses(["h:1"], ["h:3"], ["h:5"], ["h:6"], ["h:7"], ["h:8"])


def test_every_process_is_read_and_gateways_with_the_key(tmp_path: Path) -> None:
    services = plan.services(UpSettings(gateways=2), ADDRESSES, "redis://h:9")
    path = tmp_path / "prometheus.yml"
    write_scrape_config(path, services, "sk-key")
    gateways, others = yaml.safe_load(path.read_text())["scrape_configs"]
    found = {each["labels"]["pod"]: each["targets"] for job in (gateways, others) for each in job["static_configs"]}
    assert found == {"gateway-1": ["h:1"], "gateway-2": ["h:2"], "drafter-1": ["h:7"], "verifier-1": ["h:8"]}
    assert gateways["authorization"] == {"credentials": "sk-key"}
    assert "authorization" not in others
    labels = gateways["static_configs"][0]["labels"]
    assert labels == {"namespace": "local", "release": "specdec", "component": "gateway", "pod": "gateway-1"}
    assert path.stat().st_mode & 0o077 == 0


def test_without_a_key_none_is_sent(tmp_path: Path) -> None:
    write_scrape_config(tmp_path / "p.yml", plan.services(UpSettings(), ADDRESSES_OF_ONE, "redis://h:9"))
    assert "authorization" not in (tmp_path / "p.yml").read_text()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--scrape-config"):
        write_scrape_config(tmp_path / "none" / "p.yml", [])

"""Prometheus scrape configuration for the processes of `specdec up`, with the labels that the chart's rules expect."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specdec.cli.local.plan import Service
from specdec.errors import ConfigError

_NAMESPACE, _RELEASE = "local", "specdec"


def write_scrape_config(path: Path, services: Sequence[Service], key: str = "") -> None:
    """Write a configuration that scrapes every process, readable only by its owner.

    Args:
        key: API key for scraping gateways; empty for none.

    Raises:
        ConfigError: the file cannot be written.
    """
    gateways = [service for service in services if service.role == "gateway"]
    others = [service for service in services if service.role != "gateway"]
    jobs = [_job("specdec-gateways", gateways), _job("specdec", others)]
    if key:
        jobs[0]["authorization"] = {"credentials": key}
    try:
        path.touch(0o600)
        path.write_text(yaml.safe_dump({"scrape_configs": jobs}, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--scrape-config {path}: {error.strerror}") from error


def _job(name: str, services: Sequence[Service]) -> dict[str, Any]:
    return {"job_name": name, "scrape_interval": "5s", "static_configs": [_target(service) for service in services]}


def _target(service: Service) -> Mapping[str, Any]:
    labels = {"namespace": _NAMESPACE, "release": _RELEASE, "component": service.role, "pod": service.name}
    return {"targets": [service.http], "labels": labels}

"""Queries on rendered objects."""

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from tests.helm.engine import RELEASE, Manifest

TIERS = ("drafter", "verifier", "gateway")


def of_kind(objects: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    """Return the objects of these kinds."""
    return [each for each in objects if each["kind"] in kinds]


def named(objects: Iterable[Manifest], kind: str, suffix: str) -> Manifest:
    """Return the one object of a kind whose name is the chart's prefix and the suffix."""
    name = f"{RELEASE}-specdec-{suffix}"
    found = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: {len(found)} of them"
    return found[0]


def pods(objects: Iterable[Manifest]) -> dict[str, dict[str, Any]]:
    """Return the pod template of each component that runs pods."""
    runners = of_kind(objects, "Deployment", "StatefulSet", "Job")
    templates = [runner["spec"]["template"] for runner in runners] + of_kind(objects, "Pod")
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template for template in templates}


def tiers(objects: Iterable[Manifest]) -> list[str]:
    """Return the installed tiers."""
    running = pods(objects)
    return [tier for tier in TIERS if tier in running]


def containers(template: Manifest) -> Iterator[dict[str, Any]]:
    """Return all containers of a pod, including init containers."""
    yield from template["spec"].get("initContainers", [])
    yield from template["spec"]["containers"]


def config(objects: Iterable[Manifest], component: str) -> dict[str, Any]:
    """Return the configuration that a component's process reads."""
    text = named(objects, "ConfigMap", component)["data"]["config.yaml"]
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def selects(selector: dict[str, str], template: Manifest) -> bool:
    """Whether a selector matches a pod's labels."""
    return selector.items() <= template["metadata"]["labels"].items()

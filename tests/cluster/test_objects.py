"""Objects for the cluster are valid, checked without a cluster: the tests' pods and the values of installs."""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from gateway.callers.caller import ApiKey
from gateway.callers.key_file import parse
from tests.cluster.cluster import PREFIX, RELEASE
from tests.cluster.fits import BY_CPU, FITTING, OLDER, by_ratio, fitted, over
from tests.cluster.images import LOADED, load_command
from tests.cluster.pods import GATEWAY_IMAGE, STORE_IMAGE, callers, namespace, python_pod, store
from tests.helm.cases import values_of
from tests.helm.engine import CHART, find_helm, manifests
from tests.helm.objects import TIERS, of_kind


def test_the_pods_and_the_store_are_valid() -> None:
    pod = python_pod("traffic", ("python", "-c", "pass"), {"GATEWAY": "http://gateway"})
    for each in (namespace("trial"), pod, *store(), *callers()):
        kubernetes_validate.validate(each, "1.37", strict=True)


@pytest.mark.parametrize(
    ("case", "values"),
    [
        *((case, {}) for case in FITTING),
        ("default", OLDER),
        ("default", BY_CPU),
        ("ratio-controller", by_ratio("http://prometheus:9090")),
    ],
)
def test_a_file_is_rendered_with_the_values_of_the_tests(case: str, values: Mapping[str, Any]) -> None:
    """Every tier keeps its name, which the tests use to find its Deployment."""
    helm = find_helm()
    if helm is None:
        pytest.skip("neither helm-python-sdk nor a helm on PATH")
    objects = manifests(helm.render(CHART, over(fitted(case), values), RELEASE))
    names = {each["metadata"]["name"] for each in of_kind(objects, "Deployment")}
    wanted = TIERS[1:] if case == "plain" else TIERS
    assert {f"{PREFIX}-{tier}" for tier in wanted} <= names
    text = json.dumps(objects)
    secrets = {*re.findall(r'"secretName": "([^"]+)"', text), *re.findall(r'"secretKeyRef": {"name": "([^"]+)"', text)}
    given = {each["metadata"]["name"] for each in of_kind([*store(), *callers()], "Secret")}
    assert {name for name in secrets if not name.startswith(PREFIX)} <= given, "they are not of the chart"


def test_the_key_of_the_tests_is_one_of_the_gateway() -> None:
    keys, _, key = (each["stringData"] for each in callers())
    (digest,) = parse(keys["keys"], Path("keys"), ApiKey("", ""))
    assert sha256(key["key"].encode()).digest() == digest


def test_the_images_of_the_tests_are_those_that_are_loaded() -> None:
    assert {f"docker.io/{image}" for image in (GATEWAY_IMAGE, STORE_IMAGE)} <= set(LOADED)


def test_a_registry_of_ones_own_has_every_image() -> None:
    registry, helm = "localhost:5000", find_helm()
    if helm is None:
        pytest.skip("neither helm-python-sdk nor a helm on PATH")
    command = load_command("podman push IMAGE TARGET", LOADED[0], registry)
    assert command == "podman push docker.io/specdec/gateway:0.1.0 localhost:5000/specdec/gateway:0.1.0"
    values = over(values_of("minimal-cpu"), {"global": {"imageRegistry": registry}})
    pushed = {load_command("TARGET", image, registry) for image in LOADED}
    rendered = json.dumps([*manifests(helm.render(CHART, values)), python_pod("p", (), {}, registry), *store(registry)])
    assert set(re.findall(r'"image": "([^"]+)"', rendered)) == pushed

"""Gateways of several models find, monitor and authenticate each model by the values of its own release."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import GatewaySettings
from tests.helm.cases import values_of
from tests.helm.engine import CHART, ChartRefused, Helm, Manifest, manifests
from tests.helm.objects import config, named, pods

REDIS = {"redis": {"external": {"url": "redis://redis:6379/0"}}, "tls": {"enabled": False}}
CODER = {"addresses": ["coder:50063"], "path": "/models/coder"}


@pytest.fixture(scope="module")
def several(helm: Helm) -> list[Manifest]:
    return manifests(helm.render(CHART, values_of("models")))


def _settings(objects: list[Manifest], folder: Path) -> GatewaySettings:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config(objects, "gateway")), encoding="utf-8")
    return GatewaySettings.load(path)


def test_the_gateway_accepts_all_models(several: list[Manifest], tmp_path: Path) -> None:
    routes = _settings(several, tmp_path).routes
    assert list(routes) == ["large", "org/coder", "small"]
    assert routes["org/coder"].discovery.names == ("coder-specdec-verifier-headless.models.svc:50053",)
    assert routes["org/coder"].path == Path("/models/example--coder--v2")
    assert routes["small"].path == Path("/app/models/demo/target")


@pytest.mark.parametrize(("address", "peer"), [("[fd00::1]:50063", "fd00::1"), ("coder.ns:50063", "coder.ns")])
def test_the_peer_of_a_model_is_the_host_of_its_address(helm: Helm, address: str, peer: str) -> None:
    values = {
        **REDIS,
        "tls": {"certManager": {"issuerRef": {"name": "ca"}}},
        "models": {"coder": {**CODER, "addresses": [address]}},
    }
    assert config(manifests(helm.render(CHART, values)), "gateway")["models"]["coder"]["peer"] == peer


def test_verifiers_are_known_by_their_given_name_or_their_service(several: list[Manifest], tmp_path: Path) -> None:
    routes = _settings(several, tmp_path).routes
    assert routes["org/coder"].peer == "coder-specdec-verifier-headless.models.svc"
    assert routes["small"].peer == "small-specdec-verifier.models.svc"


def test_each_tokenizer_is_downloaded_into_its_own_folder(several: list[Manifest]) -> None:
    downloads = {
        container["name"]: {each["name"]: each.get("value") for each in container["env"]}
        for container in pods(several)["gateway"]["spec"]["initContainers"]
    }
    folders = {name: (env["MODEL"], env["REVISION"], env["FOLDER"]) for name, env in downloads.items()}
    assert folders == {
        "download-model": ("example/large", "v1", "/models/example--large--v1"),
        "download-model-2": ("example/coder", "v2", "/models/example--coder--v2"),
    }
    assert all("safetensors" not in str(env["FILES"]) for env in downloads.values())


def test_a_folder_lies_in_the_claim_of_the_gateway(helm: Helm) -> None:
    claim = {"model": {"source": "claim", "existingClaim": "models", "path": "large"}}
    objects = manifests(helm.render(CHART, {**REDIS, "gateway": claim, "models": {"c": {**CODER, "path": "coder"}}}))
    assert config(objects, "gateway")["models"]["c"]["path"] == "/models/coder"


def test_the_policy_lets_gateways_out_to_all_verifiers(helm: Helm) -> None:
    objects = manifests(helm.render(CHART, {**REDIS, "models": {"coder": CODER}}))
    assert {"ports": [{"port": 50063}]} in named(objects, "NetworkPolicy", "gateway")["spec"]["egress"]


def test_a_new_model_rolls_the_gateways_and_nothing_else(helm: Helm) -> None:
    before = pods(manifests(helm.render(CHART, REDIS)))
    after = pods(manifests(helm.render(CHART, {**REDIS, "models": {"coder": CODER}})))
    assert {component for component in before if before[component] != after[component]} == {"gateway", "test"}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"models": {"c": {**CODER, "path": "coder"}}},
            "models.c.path is inside the claim or the OCI image of",
        ),
        (
            {"models": {"c": {"addresses": ["c:1"], "huggingFace": {"repository": "a/b", "revision": "v1"}}}},
            "models.c is downloaded beside gateway.model, which is not",
        ),
        ({"models": {"target": CODER}}, "models.target has the name of gateway.model"),
        ({"models": {"c": CODER}, "tls": {"enabled": True}}, "Tiers of several releases need one authority"),
        ({"models": {"c": {"path": "/m"}}}, "addresses"),
        ({"models": {"c": {"addresses": ["c:1"]}}}, "/models/c"),
        ({"gateway": {"config": {"models": {}}}}, "models"),
    ],
)
def test_what_cannot_serve_is_refused(helm: Helm, values: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ChartRefused) as caught:
        helm.render(CHART, {**REDIS, **values})
    assert sentence in " ".join(str(caught.value).split())

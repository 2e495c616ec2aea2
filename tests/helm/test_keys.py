"""API keys and the public certificate are mounted only at gateways, in a way that a changed Secret takes effect."""

import pytest
import yaml

from tests.helm.cases import values_of
from tests.helm.engine import CHART, ChartRefused, Helm, Manifest, manifests
from tests.helm.objects import named, pods


@pytest.fixture(scope="module")
def keyed(helm: Helm) -> list[Manifest]:
    return manifests(helm.render(CHART, values_of("keys")))


def test_gateways_read_keys_and_certificate_from_folders(keyed: list[Manifest]) -> None:
    config = yaml.safe_load(named(keyed, "ConfigMap", "gateway")["data"]["config.yaml"])
    assert config["api_keys"] == "/api-keys/keys"
    assert config["public_tls"] == {"certificate": "/public-tls/tls.crt", "key": "/public-tls/tls.key"}
    spec = pods(keyed)["gateway"]["spec"]
    secrets = {each["name"]: each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
    assert (secrets["api-keys"], secrets["public-tls"]) == ("api-keys", "public-certificate")
    mounts = {each["name"]: each for each in spec["containers"][0]["volumeMounts"]}
    for name in ("api-keys", "public-tls"):
        assert mounts[name]["readOnly"]
        assert "subPath" not in mounts[name], "a file that is mounted alone never changes"


def test_no_other_tier_sees_them(keyed: list[Manifest]) -> None:
    for tier in ("verifier", "drafter"):
        assert not {"api-keys", "public-tls"} & {each["name"] for each in pods(keyed)[tier]["spec"]["volumes"]}


def test_the_release_test_sends_a_key_over_tls(keyed: list[Manifest]) -> None:
    variables = {each["name"]: each for each in pods(keyed)["test"]["spec"]["containers"][0]["env"]}
    assert variables["GATEWAY"]["value"].startswith("https://")
    assert variables["API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "test-key", "key": "key"}}


def test_a_release_test_without_a_key_is_refused(helm: Helm) -> None:
    values = {name: value for name, value in values_of("keys").items() if name != "tests"}
    with pytest.raises(ChartRefused, match=r"tests\.apiKey\.existingSecret"):
        helm.render(CHART, values)

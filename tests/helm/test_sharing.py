"""Two releases share a namespace, a Redis and a Grafana without sharing an object, a session or a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helm.engine import CHART, RELEASE, Helm, Manifest, manifests
from tests.helm.objects import config, named, of_kind

REDIS = {"redis": {"external": {"url": "redis://redis:6379/0"}}}
CLAIM = {"source": "huggingFace", "huggingFace": {"repository": "owner/model"}, "cache": {"kind": "claim"}}


def _render(helm: Helm, values: Mapping[str, Any], release: str = RELEASE) -> list[Manifest]:
    return manifests(helm.render(CHART, {**REDIS, **values}, release))


def _names(objects: list[Manifest]) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects}


LONG = "a-release-whose-name-is-as-long-as-helm-lets-it"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("prod", "canary"),
        ("prod", "prod-specdec"),
        ("specdec", "specdec-specdec"),
        (f"{LONG}-1", f"{LONG}-2"),
    ],
)
def test_two_releases_of_a_namespace_have_no_object_in_common(helm: Helm, one: str, other: str) -> None:
    everything = {
        "drafter": {"autoscaling": {"kind": "ratio"}},
        "metrics": {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}},
    }
    names = [_names(_render(helm, everything, release)) for release in (one, other)]
    assert not names[0] & names[1]
    assert all(len(name) <= 63 for found in names for _, name in found)


def test_what_is_cut_ends_in_a_hash_and_what_is_short_is_whole(helm: Helm) -> None:
    (account, *_) = of_kind(_render(helm, {}, f"{LONG}-1"), "ServiceAccount")
    assert account["metadata"]["name"].startswith("a-release-whose-name-is-as-long-")
    assert ("Deployment", "prod-specdec-gateway") in _names(_render(helm, {}))
    assert ("Deployment", "specdec-gateway") in _names(_render(helm, {}, "specdec"))


def test_releases_on_one_redis_are_kept_apart_unless_they_name_one_prefix(helm: Helm) -> None:
    def prefix(release: str, **redis: str) -> str:
        found = _render(helm, {"redis": {**REDIS["redis"], **redis}}, release)
        name = "canary-specdec-gateway" if release == "canary" else "prod-specdec-gateway"
        (map_,) = [each for each in of_kind(found, "ConfigMap") if each["metadata"]["name"] == name]
        return next(line for line in map_["data"]["config.yaml"].splitlines() if line.startswith("redis_prefix"))

    assert (prefix("prod"), prefix("canary")) == ("redis_prefix: 'ns/prod:'", "redis_prefix: 'ns/canary:'")
    assert prefix("prod", keyPrefix="shared:") == prefix("canary", keyPrefix="shared:")


def test_the_gateway_is_told_its_prefix(default: list[Manifest]) -> None:
    assert config(default, "gateway")["redis_prefix"] == "ns/prod:"


@pytest.mark.parametrize("tier", ["drafter", "verifier", "gateway"])
def test_downloaded_models_outlive_the_release_unless_told_otherwise(helm: Helm, tier: str) -> None:
    def claim(**cache: object) -> Manifest:
        found = _render(helm, {tier: {"model": {**CLAIM, "cache": {"kind": "claim", **cache}}}})
        return named(found, "PersistentVolumeClaim", f"{tier}-models")

    assert claim()["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in claim(keep=False)["metadata"]


def test_sessions_for_trying_things_out_end_with_the_release(helm: Helm) -> None:
    found = _render(helm, {"redis": {"dev": {"enabled": True}}})
    (valkey,) = [each for each in of_kind(found, "StatefulSet") if each["metadata"]["name"].endswith("-valkey")]
    assert valkey["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"


def test_renders_are_the_same_from_run_to_run(helm: Helm, tmp_path: Path) -> None:
    values = {**REDIS, "metrics": {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}}
    assert helm.render(CHART, values) == helm.render(CHART, values)

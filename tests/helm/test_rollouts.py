"""A rollout starts new pods where there is room, allows time to load a model, and warns where it causes an outage."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.helm.engine import CHART, ChartRefused, Helm, Manifest, manifests, notes
from tests.helm.objects import TIERS, named

REDIS = {"redis": {"external": {"url": "redis://redis:6379/0"}}}
HUB = {"source": "huggingFace", "huggingFace": {"repository": "owner/model"}}
ONE_NODE = {**HUB, "cache": {"kind": "claim"}}
EVERY_NODE = {**HUB, "cache": {"kind": "claim", "accessModes": ["ReadWriteMany"]}}
IN_TURN = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
OLD_FIRST = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def _texts(helm: Helm, tier: str, values: Mapping[str, Any]) -> dict[str, str]:
    return helm.render(CHART, {**REDIS, tier: values})


def _spec(helm: Helm, tier: str, values: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = named(manifests(_texts(helm, tier, values)), "Deployment", tier)["spec"]
    return spec


@pytest.mark.parametrize("tier", TIERS)
def test_a_single_replica_is_no_outage_by_default(default: list[Manifest], tier: str) -> None:
    assert named(default, "Deployment", tier)["spec"]["strategy"] == IN_TURN


@pytest.mark.parametrize(
    ("gpu", "strategy"),
    [
        ({}, OLD_FIRST),
        ({"spare": 1}, IN_TURN),
        ({"spare": 3}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 0}}),
    ],
)
def test_a_gpu_tier_starts_as_many_pods_as_there_are_spare_accelerators(
    helm: Helm, gpu: dict[str, int], strategy: dict[str, Any]
) -> None:
    assert _spec(helm, "verifier", {"gpu": {"enabled": True, **gpu}})["strategy"] == strategy


@pytest.mark.parametrize("tier", TIERS)
def test_a_cache_of_one_node_is_let_go_before_the_next_pod_takes_it(helm: Helm, tier: str) -> None:
    assert _spec(helm, tier, {"model": ONE_NODE})["strategy"] == OLD_FIRST
    assert _spec(helm, tier, {"model": EVERY_NODE})["strategy"] == IN_TURN


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier_takes_a_strategy_of_its_own(helm: Helm, tier: str) -> None:
    own = {"strategy": {"type": "Recreate"}, "progressDeadlineSeconds": 7200, "minReadySeconds": 15}
    spec = _spec(helm, tier, own)
    assert {key: spec[key] for key in own} == own


@pytest.mark.parametrize("tier", TIERS)
def test_the_deadline_allows_a_download_and_a_start(helm: Helm, tier: str) -> None:
    """Helm's --wait fails when the rollout does, and a large model takes longer than Kubernetes' deadline of 600 s."""
    spec = _spec(helm, tier, {"startupSeconds": 1800, "minReadySeconds": 20, "model": HUB})
    assert spec["progressDeadlineSeconds"] >= 1800 + 20 + 3600
    loaded = _spec(helm, tier, {"startupSeconds": 1800})
    assert 1800 < loaded["progressDeadlineSeconds"] < 3600


@pytest.mark.parametrize(
    ("tier", "values", "sentence"),
    [
        ("gateway", {"replicas": 2, "model": ONE_NODE}, "set gateway.model.cache.accessModes=[ReadWriteMany], or one"),
        ("gateway", {"autoscaling": {"kind": "hpa"}, "model": ONE_NODE}, "Up to 4 pods of the gateway share a cache"),
        ("drafter", {"replicas": 2, "model": ONE_NODE}, "set drafter.model.cache.accessModes=[ReadWriteMany], or one"),
        ("verifier", {"progressDeadlineSeconds": 600}, "its rollout would fail after 600 s"),
        ("verifier", {"model": HUB, "progressDeadlineSeconds": 4200}, "raise verifier.progressDeadlineSeconds"),
        ("gateway", {"lifecycle": {"preStop": {"sleep": {"seconds": 60}}}}, "raise gateway.terminationGracePeriod"),
        ("gateway", {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "60"]}}}}, "takes up to 120 s"),
    ],
)
def test_what_could_never_roll_out_or_drain_is_refused(
    helm: Helm, tier: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ChartRefused) as caught:
        _texts(helm, tier, values)
    assert sentence in " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    "values",
    [
        {"replicas": 2, "model": EVERY_NODE},
        {"model": ONE_NODE},
        {"progressDeadlineSeconds": 601},
        {"lifecycle": {"postStart": {"exec": {"command": ["true"]}}}},
    ],
)
def test_what_can_is_taken(helm: Helm, values: dict[str, Any]) -> None:
    assert _texts(helm, "verifier", values)


@pytest.mark.parametrize(
    ("tier", "values", "advice"),
    [
        (
            "verifier",
            {"gpu": {"enabled": True}},
            "Declare a free accelerator in verifier.gpu.spare, or run two replicas.",
        ),
        (
            "drafter",
            {"gpu": {"enabled": True}},
            "Declare a free accelerator in drafter.gpu.spare, or run two replicas.",
        ),
        ("gateway", {"model": ONE_NODE}, "Give its cache ReadWriteMany."),
    ],
)
def test_an_outage_is_warned_of(helm: Helm, tier: str, values: dict[str, Any], advice: str) -> None:
    printed = notes(_texts(helm, tier, values))
    assert f"WARNING: a rollout ends the only {tier} before the next is ready" in printed
    assert advice in printed


@pytest.mark.parametrize(
    "values", [{}, {"gpu": {"enabled": True, "spare": 1}}, {"gpu": {"enabled": True}, "replicas": 2}]
)
def test_no_outage_is_not_warned_of(helm: Helm, values: dict[str, Any]) -> None:
    assert "WARNING: a rollout" not in notes(_texts(helm, "verifier", values))

"""Operations under load fail no request and change no token."""

import base64
import time
from functools import partial
from typing import Any

import pytest

from tests.cluster.cluster import PREFIX, Cluster, wait

pytestmark = pytest.mark.timeout(1800)
TIERS = ("drafter", "verifier", "gateway")
REFUSALS = ("503", "refused")
"""Valid results of a request to gateways without a verifier: a refusal, or no connection if no gateway is ready."""
TWO = {tier: {"replicas": 2} for tier in ("verifier", "gateway")}
SERVED = "import ssl; print(ssl.get_server_certificate(('127.0.0.1', 50053)), end='')"
"""Script that prints the certificate of new connections to a verifier."""


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    """Install the chart with mutual TLS, network policies, two verifiers and two gateways."""
    cluster.install("default", **TWO)
    return cluster


def _all_answered(report: dict[str, Any]) -> None:
    assert report["failed"] == []
    assert report["answered"] > 0
    assert len(report["texts"]) == 1, "greedy decoding has one text"


def _serves(cluster: Cluster, pod: str, certificate: str) -> bool:
    return cluster.kubectl("exec", pod, "--", "python", "-c", SERVED) == certificate


def test_an_upgrade_of_every_tier(installed: Cluster) -> None:
    before = {tier: installed.pods(tier) for tier in TIERS}
    changed = {tier: {"podAnnotations": {"changed": "yes"}, **TWO.get(tier, {})} for tier in TIERS}
    with installed.traffic() as report:
        installed.install("default", **changed)
    assert [tier for tier in TIERS if set(installed.pods(tier)) & set(before[tier])] == []
    _all_answered(report)


@pytest.mark.parametrize("tier", TIERS)
def test_a_pod_that_is_deleted(installed: Cluster, tier: str) -> None:
    with installed.traffic() as report:
        installed.kubectl("delete", "pod", installed.pods(tier)[0], "--timeout", "180s")
        installed.kubectl("rollout", "status", f"deployment/{PREFIX}-{tier}", "--timeout", "300s")
    _all_answered(report)


def test_drafters_that_go_to_zero_and_come_back(installed: Cluster) -> None:
    deployment = f"deployment/{PREFIX}-drafter"
    with installed.traffic() as report:
        installed.kubectl("scale", deployment, "--replicas=0")
        wait(lambda: not installed.objects("pods", "--selector", "app.kubernetes.io/component=drafter"))
        time.sleep(10)  # requests without any drafter
        installed.kubectl("scale", deployment, "--replicas=1")
        installed.kubectl("rollout", "status", deployment, "--timeout", "300s")
    _all_answered(report)
    assert "drafted tokens" in installed.test()


def test_verifiers_that_go_to_zero_and_come_back(installed: Cluster) -> None:
    """Without a verifier every request is refused at once and none waits for its timeout."""
    deployment = f"deployment/{PREFIX}-verifier"
    installed.kubectl("scale", deployment, "--replicas=0")
    wait(lambda: not installed.objects("pods", "--selector", "app.kubernetes.io/component=verifier"))
    with installed.traffic() as asleep:
        time.sleep(30)
    assert asleep["answered"] == 0
    assert asleep["failed"]
    assert [each for each in asleep["failed"] if not any(word in each for word in REFUSALS)] == []
    installed.kubectl("scale", deployment, "--replicas=2")
    for each in (deployment, f"deployment/{PREFIX}-gateway"):
        installed.kubectl("rollout", "status", each, "--timeout", "300s")
    with installed.traffic() as awake:
        time.sleep(20)
    _all_answered(awake)


def test_a_certificate_that_is_renewed(installed: Cluster) -> None:
    secret = f"{PREFIX}-verifier-tls"

    def certificate() -> str:
        found = installed.kubectl("get", "secret", secret, "--output", "jsonpath={.data.tls\\.crt}")
        return base64.b64decode(found).decode()

    before = certificate()
    with installed.traffic() as report:
        installed.kubectl("delete", "secret", secret)
        installed.upgrade_unchanged()  # the chart's Job makes the missing Secret
        after = certificate()
        for name in installed.pods("verifier"):  # the kubelet brings it within two minutes
            wait(partial(_serves, installed, name, after))
        time.sleep(10)  # requests meet servers with the new one
    assert before != after
    _all_answered(report)

"""Inconsistent values are refused with a clear message that lists all mistakes."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.helm.engine import CHART, ChartRefused, Helm, notes

REDIS = {"redis": {"external": {"url": "redis://redis:6379/0"}}}


def _redis(**external: object) -> dict[str, Any]:
    return {"redis": {"external": external}}


def _kv(url: str = "redis://redis:6379/0", **kv: object) -> dict[str, Any]:
    return {"redis": {"external": {"url": url}, "kv": kv}}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"redis": {}}, "Gateways keep sessions in Redis: set redis.external.url"),
        ({"redis": {**REDIS["redis"], "dev": {"enabled": True}}}, "set either redis.external or redis.dev"),
        (_redis(url="redis://:secret@redis:6379/0"), "redis.external.url must not hold a password"),
        (_redis(addresses=["a:1", "b:1"]), "several Sentinels or one server"),
        (_kv(external={"url": "redis://:secret@kv:6379/0"}), "redis.kv.external.url must not hold a password"),
        (_kv(external={"addresses": ["a:1", "b:1"]}), "set redis.kv.external.sentinelMaster"),
        (_kv(external={"url": "redis://redis:6379/1"}), "give redis.kv.external another server"),
        (
            _kv("redis+sentinel://a:1,b:1/sessions", external={"url": "redis+sentinel://a:1,b:1/sessions/1"}),
            "give redis.kv.external another server",
        ),
        ({"tls": {"mode": "certManager"}}, "Mutual TLS by cert-manager needs an issuer"),
        ({"tls": {"existingSecrets": {"gateway": "g"}}}, "Mutual TLS needs a certificate for the drafter"),
        ({"drafter": {"enabled": False, "autoscaling": {"kind": "ratio"}}}, "The ratio controller scales drafters"),
        ({"verifier": {"autoscaling": {"kind": "keda"}}}, "KEDA scales the verifier by what Prometheus knows"),
        ({"drafter": {"autoscaling": {"kind": "hpa"}}}, "A HorizontalPodAutoscaler keeps at least one pod"),
        ({"gateway": {"autoscaling": {"kind": "hpa", "minReplicas": 9}}}, "minReplicas must not be more than"),
        (
            {"verifier": {"terminationGracePeriodSeconds": 35}},
            "takes up to 35 s (preStop and drain) and would be killed",
        ),
        ({"verifier": {"drain": {"preStopSeconds": 60}}}, "raise verifier.terminationGracePeriodSeconds"),
        ({"verifier": {"model": {"source": "claim", "path": "large"}}}, "set verifier.model.existingClaim"),
        ({"verifier": {"model": {"source": "claim", "existingClaim": "c"}}}, "must not begin with a slash"),
        ({"gateway": {"model": {"path": "large"}}}, "must begin with a slash"),
        ({"drafter": {"model": {"source": "huggingFace"}}}, "set drafter.model.huggingFace.repository"),
        ({"gatewayApi": {"httpRoute": {"enabled": True}}}, "Routes hang on a Gateway"),
        (
            {"gateway": {"service": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]}}},
            "gateway.service.ipFamilies holds two families",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(helm: Helm, values: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(ChartRefused) as caught:
        helm.render(CHART, {**REDIS, **values})
    assert sentence in " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    "values",
    [
        _kv(external={"url": "redis://blocks:6379/0"}),
        _kv("redis+sentinel://a:1,b:1/sessions", external={"url": "redis+sentinel://a:1,b:1/blocks"}),
        {"redis": {"external": {"existingSecret": "a"}, "kv": {"external": {"existingSecret": "b"}}}},
        {"redis": {"dev": {"enabled": True}, "kv": {"dev": {"enabled": True}}}},
    ],
)
def test_roles_of_redis_may_have_a_server_each(helm: Helm, values: Mapping[str, Any]) -> None:
    assert helm.render(CHART, values)


def test_every_mistake_is_told_at_once(helm: Helm) -> None:
    with pytest.raises(ChartRefused) as caught:
        helm.render(CHART, {"tls": {"mode": "certManager"}})
    assert "set redis.external.url" in str(caught.value)
    assert "set tls.certManager.issuerRef.name" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({"redis": {"dev": {"enabled": True}}, "gateway": {"replicas": 2}}, "WARNING: several gateways share it"),
        ({**REDIS, "drafter": {"enabled": False}}, "WARNING: there are no drafters"),
        ({**REDIS, "tls": {"enabled": False}}, "WARNING: the services speak plaintext"),
        ({**REDIS, "sizing": {"alpha": 0.1}}, "WARNING: with these numbers drafting does not pay"),
        ({**REDIS, "ingress": {"enabled": True}}, "WARNING: callers come from outside"),
        ({**REDIS, "gateway": {"service": {"type": "LoadBalancer"}}}, "WARNING: callers come from outside"),
        ({**REDIS, "metrics": {"podMonitor": {"enabled": True}}}, "WARNING: monitors are on"),
    ],
)
def test_what_is_allowed_and_unwise_is_warned_of(helm: Helm, values: Mapping[str, Any], warning: str) -> None:
    assert warning in notes(helm.render(CHART, values))
    assert warning not in notes(helm.render(CHART, REDIS))


def test_the_printed_ratio_is_the_formula(helm: Helm) -> None:
    sizing = {"alpha": 0.5, "gamma": 2, "drafterStepSeconds": 0.01, "verifierStepSeconds": 0.04, "verifierBatch": 64}
    printed = notes(helm.render(CHART, {**REDIS, "sizing": sizing}))
    assert "tokens a round           1.75" in printed
    assert "drafters per verifier    1 " in printed
    assert "speed-up of a session    1.17" in printed

"""Rules, dashboards and autoscalers ask for what the services export, and promtool accepts the rules."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from drafter_service.metrics import DrafterMetrics
from gateway.metrics import GatewayMetrics
from gateway.ratio_controller.metrics import ControllerMetrics
from specdec.serving.discovery import StaticSource, watch_age
from tests.helm.engine import CHART, Manifest
from tests.helm.objects import named, of_kind
from verifier_service.metrics import Metrics as VerifierMetrics

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
OF_PROMETHEUS = {"namespace", "pod", "component", "release", "le"}
"""Labels that scraping adds, or that histograms have."""
PROMTOOL = shutil.which("promtool", path=os.pathsep.join((str(CHART.parent / "build"), os.environ["PATH"])))


def _families() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    other = CollectorRegistry()
    VerifierMetrics(other)
    watch_age(StaticSource(()), other)
    registries = [
        registry,
        other,
        DrafterMetrics(CollectorRegistry()).registry,
        ControllerMetrics(CollectorRegistry()).registry,
    ]
    for each in registries:
        for collector in set(each._names_to_collectors.values()):
            described = next(iter(collector.describe()))
            yield described.name, described.type, tuple(getattr(collector, "_labelnames", ()))


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Series to the labels that some service gives it."""
    found: dict[str, set[str]] = {}
    for name, kind, labels in _families():
        for suffix in SUFFIXES[kind]:
            found.setdefault(name + suffix, set()).update(labels)
    return found


def _asked(query: str) -> Iterator[tuple[str, set[str]]]:
    """(series, label matchers) of a PromQL query."""
    for name, matchers in re.findall(r"\b(specdec_\w+)\b(?:\{([^}]*)\})?", query):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def _unknown(queries: list[str], exported: dict[str, set[str]]) -> list[str]:
    asked = [(name, labels, query) for query in queries for name, labels in _asked(query)]
    assert asked
    return [query for name, labels, query in asked if name not in exported or labels - exported[name] - OF_PROMETHEUS]


@pytest.fixture
def rules(full: list[Manifest]) -> dict[str, object]:
    """As Prometheus would read them."""
    spec: dict[str, object] = named(full, "PrometheusRule", "metrics")["spec"]
    return spec


def test_rules_ask_for_what_is_exported(rules: dict[str, object], exported: dict[str, set[str]]) -> None:
    queries = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]  # type: ignore[attr-defined]
    recorded = {rule.get("record") for group in rules["groups"] for rule in group["rules"]}  # type: ignore[attr-defined]
    assert _unknown([query for query in queries if "specdec_" in query], exported) == []
    assert {name for query in queries for name in re.findall(r"specdec:[\w:]+", query)} <= recorded


def test_dashboards_ask_for_what_is_exported(full: list[Manifest], exported: dict[str, set[str]]) -> None:
    text = named(full, "ConfigMap", "metrics-dashboard")["data"]["specdec.json"]
    panels = json.loads(text)["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert _unknown(queries, exported) == []
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({tuple(panel["gridPos"].values()) for panel in panels}) == len(panels)


@pytest.mark.parametrize("case", ["keda"], indirect=True)
def test_autoscalers_ask_for_what_is_exported(objects: list[Manifest], exported: dict[str, set[str]]) -> None:
    triggers = [trigger for each in of_kind(objects, "ScaledObject") for trigger in each["spec"]["triggers"]]
    assert len(triggers) == 3
    assert _unknown([trigger["metadata"]["query"] for trigger in triggers], exported) == []


def test_services_do_not_count_the_same_under_one_name() -> None:
    """A sum over a name would count it twice."""
    counted = Counter(name for name, _, _ in _families())
    assert [name for name, count in counted.items() if count > 1] == []


def test_a_metric_that_nobody_exports_is_noticed(exported: dict[str, set[str]]) -> None:
    assert _unknown(["sum(specdec_wishes)", 'specdec_verifier_up{planet="mars"}'], exported) == [
        *("sum(specdec_wishes)", 'specdec_verifier_up{planet="mars"}'),
    ]


def test_every_alert_says_what_to_do_and_is_in_the_manual(rules: dict[str, object]) -> None:
    manual = (CHART.parent / "docs" / "operating.md").read_text(encoding="utf-8")
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]  # type: ignore[attr-defined]
    assert alerts
    for alert in alerts:
        assert {"summary", "description"} <= alert["annotations"].keys()
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert f"`{alert['alert']}`" in manual


def test_monitors_label_series_as_the_rules_expect(full: list[Manifest]) -> None:
    for monitor in of_kind(full, "ServiceMonitor", "PodMonitor"):
        (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        given = {each["targetLabel"]: each["replacement"] for each in endpoint["relabelings"]}
        component = monitor["metadata"]["labels"]["app.kubernetes.io/component"]
        assert given == {"component": component, "release": "prod"}


@pytest.mark.skipif(not PROMTOOL, reason="no promtool: `make chart-tools`, where there is apt-get")
def test_promtool_accepts_the_rules_and_their_cases(rules: dict[str, object], tmp_path: Path) -> None:
    assert PROMTOOL
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    shutil.copy(Path(__file__).with_name("rules_test.yaml"), tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run([PROMTOOL, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

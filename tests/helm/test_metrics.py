"""Rules, dashboards and autoscalers query only exported metrics, and promtool accepts the rules."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.utils import floatToGoString

from drafter_service.metrics import DrafterMetrics
from gateway.metrics import GatewayMetrics, KeyMetrics, KvMetrics
from gateway.ratio_controller.controller import ControllerMetrics
from specdec.serving.discovery import StaticSource, watch_age
from specdec.serving.rpc.tls import Certificates, watch_expiry
from tests.helm.engine import CHART, Helm, Manifest, manifests
from tests.helm.objects import named, of_kind, pods, selects
from verifier_service.metrics import VerifierMetrics

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
OF_PROMETHEUS = {"namespace", "pod", "component", "release", "le"}
"""Labels added by scraping or by histograms."""
CASES = Path(__file__).with_name("rules_test.yaml")
PROMTOOL = shutil.which("promtool", path=os.pathsep.join((str(CHART.parent / "build"), os.environ["PATH"])))
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="no promtool: `make chart-tools`, where there is apt-get")


def _registries() -> dict[str, CollectorRegistry]:
    """Return the metrics registry of each process."""
    found = {name: CollectorRegistry() for name in ("drafter", "verifier", "gateway", "ratio-controller")}
    DrafterMetrics(found["drafter"])
    VerifierMetrics(found["verifier"])
    GatewayMetrics(found["gateway"])
    KeyMetrics(found["gateway"])
    KvMetrics(found["gateway"])
    ControllerMetrics(found["ratio-controller"])
    for searching in ("verifier", "gateway"):
        watch_age(found[searching], StaticSource(()))
    pem = CHART / "Chart.yaml"  # any file: only the metric's name matters
    for speaking in ("drafter", "verifier", "gateway"):
        watch_expiry(Certificates(pem, pem, pem), found[speaking])
    watch_expiry(Certificates(pem, pem, None), found["gateway"], public=True)
    return found


def _families() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for registry in _registries().values():
        for collector in set(registry._names_to_collectors.values()):
            described = next(iter(collector.describe()))
            yield described.name, described.type, tuple(getattr(collector, "_labelnames", ()))


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the labels of each exported series."""
    found: dict[str, set[str]] = {}
    for name, kind, labels in _families():
        for suffix in SUFFIXES[kind]:
            found.setdefault(name + suffix, set()).update(labels)
    return found


def _asked(query: str) -> Iterator[tuple[str, set[str]]]:
    """Yield (series, label matchers) for each selector of a PromQL query."""
    for name, matchers in re.findall(r"\b(specdec_\w+)\b(?:\{([^}]*)\})?", query):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def _unknown(queries: list[str], exported: dict[str, set[str]]) -> list[str]:
    asked = [(name, labels, query) for query in queries for name, labels in _asked(query)]
    assert asked
    return [query for name, labels, query in asked if name not in exported or labels - exported[name] - OF_PROMETHEUS]


@pytest.fixture
def rules(full: list[Manifest]) -> dict[str, Any]:
    """The rules as Prometheus reads them."""
    spec: dict[str, Any] = named(full, "PrometheusRule", "metrics")["spec"]
    return spec


def test_rules_ask_for_what_is_exported(rules: dict[str, Any], exported: dict[str, set[str]]) -> None:
    queries = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    recorded = {rule.get("record") for group in rules["groups"] for rule in group["rules"]}
    assert _unknown([query for query in queries if "specdec_" in query], exported) == []
    assert {name for query in queries for name in re.findall(r"specdec:[\w:]+", query)} <= recorded


def test_dashboards_ask_for_what_is_exported(full: list[Manifest], exported: dict[str, set[str]]) -> None:
    text = named(full, "ConfigMap", "metrics-dashboard")["data"]["specdec.ns.prod.json"]
    panels = json.loads(text)["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert _unknown(queries, exported) == []
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({tuple(panel["gridPos"].values()) for panel in panels}) == len(panels)


@pytest.mark.parametrize("case", ["keda"], indirect=True)
def test_autoscalers_ask_for_what_is_exported(objects: list[Manifest], exported: dict[str, set[str]]) -> None:
    triggers = [trigger for each in of_kind(objects, "ScaledObject") for trigger in each["spec"]["triggers"]]
    assert len(triggers) == 4
    assert _unknown([trigger["metadata"]["query"] for trigger in triggers], exported) == []


def test_services_do_not_count_the_same_under_one_name() -> None:
    """Otherwise a sum over the name would count one event twice."""
    exporters = Counter(name for name, _, _ in _families())
    shared = {name for name, count in exporters.items() if count > 1}
    of_each_process = {"specdec_discovery_sync_age_seconds", "specdec_certificate_expiry_timestamp_seconds"}
    assert shared == of_each_process, "an age and a date are no counts"


def test_a_metric_that_nobody_exports_is_noticed(exported: dict[str, set[str]]) -> None:
    assert _unknown(["sum(specdec_wishes)", 'specdec_verifier_up{planet="mars"}'], exported) == [
        *("sum(specdec_wishes)", 'specdec_verifier_up{planet="mars"}'),
    ]


def _alerts(rules: dict[str, Any]) -> list[dict[str, Any]]:
    found = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    assert found
    return found


def test_every_alert_says_what_to_do_and_is_in_the_manual(rules: dict[str, Any]) -> None:
    manual = (CHART.parent / "docs" / "monitoring.md").read_text(encoding="utf-8")
    advised = set(re.findall(r"^### (Specdec\w+)\n\n\S", manual, re.MULTILINE))
    assert advised == {alert["alert"] for alert in _alerts(rules)}
    for alert in _alerts(rules):
        assert {"summary", "description"} <= alert["annotations"].keys()
        assert alert["annotations"]["runbook_url"] == f"docs/monitoring.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in {"warning", "critical"}


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_not(rules: dict[str, Any]) -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    names = {alert["alert"] for alert in _alerts(rules)}
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == names
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == names


def test_every_alert_has_a_case_in_which_its_series_are_missing(rules: dict[str, Any]) -> None:
    cases = {case["name"]: case for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]}
    checked = [check["alertname"] for check in cases["nothing is scraped"]["alert_rule_test"]]
    assert sorted(checked) == sorted({alert["alert"] for alert in _alerts(rules)})


@pytest.mark.parametrize(
    ("values", "silent"),
    [
        ({}, {"SpecdecRatioControllerStuck", "SpecdecPublicCertificateExpires", "SpecdecApiKeysNotRead"}),
        ({"tls": {"enabled": False}}, {"SpecdecCertificateExpires"}),
        ({"drafter": {"enabled": False}}, {"SpecdecNoDrafter", "SpecdecDraftersLost", "SpecdecDrafterKvFull"}),
        ({"drafter": {"autoscaling": {"kind": "keda"}}}, {"SpecdecNoDrafter"}),
        ({"verifier": {"autoscaling": {"kind": "keda", "minReplicas": 0}}}, {"SpecdecNoVerifier"}),
    ],
)
def test_no_alert_is_about_what_is_not_installed(helm: Helm, values: dict[str, Any], silent: set[str]) -> None:
    assert not silent & {alert["alert"] for alert in _alerts(_rules(helm, values))}


@pytest.mark.parametrize(
    ("values", "processes"),
    [
        ({"drafter": {"enabled": False}}, {"verifier", "gateway"}),
        ({"verifier": {"enabled": False}, "gateway": {"enabled": False}, "tls": {"enabled": False}}, {"drafter"}),
        (
            {
                "drafter": {"enabled": False},
                "verifier": {"enabled": False, "external": {"addresses": ["far.ns:50053"]}},
                "tls": {"enabled": False},
            },
            {"gateway"},
        ),
    ],
)
def test_alerts_read_only_what_an_installed_tier_exports(
    helm: Helm, values: dict[str, Any], processes: set[str]
) -> None:
    registries = _registries()
    there = {name for process in processes for name in _series(registries[process])}
    spec = _rules(helm, values)
    recorded = {rule["record"]: rule["expr"] for group in spec["groups"] for rule in group["rules"] if "record" in rule}
    for alert in _alerts(spec):
        asked = re.findall(r"specdec_\w+", _expanded(alert["expr"], recorded))
        assert not asked or there & set(asked), f"{alert['alert']} can never be right here"


def test_the_bound_of_a_first_token_is_one_of_a_histogram(exported: dict[str, set[str]]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    rule = schema["properties"]["metrics"]["properties"]["prometheusRule"]["properties"]
    bounds = rule["objectives"]["properties"]["firstTokenSeconds"]["enum"]
    registry = CollectorRegistry()
    GatewayMetrics(registry).first_token_seconds.observe(1.0)
    known = {sample.labels.get("le") for metric in registry.collect() for sample in metric.samples}
    assert bounds
    assert {floatToGoString(bound) for bound in bounds} <= known


@pytest.mark.parametrize("drafter", [{"enabled": False}, {"replicas": 0}])
def test_no_alert_expects_drafters_where_none_are_configured(helm: Helm, drafter: dict[str, Any]) -> None:
    about_drafters = {"SpecdecDraftersLost", "SpecdecNoDrafter", "SpecdecDraftStarvation", "SpecdecTokenizerMismatch"}
    assert not about_drafters & {alert["alert"] for alert in _alerts(_rules(helm, {"drafter": drafter}))}


def test_drafters_of_another_release_may_be_lost_too(helm: Helm) -> None:
    shared = {"enabled": False, "external": {"addresses": ["drafters.ns:50052"]}}
    values = {"drafter": shared, "tls": {"enabled": False}}
    assert "SpecdecDraftersLost" in {alert["alert"] for alert in _alerts(_rules(helm, values))}


def _rules(helm: Helm, values: dict[str, Any]) -> dict[str, Any]:
    """Return the rules of a release with these values."""
    metrics = {"prometheusAddress": "http://prometheus:9090", "prometheusRule": {"enabled": True}}
    redis = {"external": {"url": "redis://redis:6379/0"}}
    found = manifests(helm.render(CHART, {"redis": redis, "metrics": metrics, **values}))
    spec: dict[str, Any] = named(found, "PrometheusRule", "metrics")["spec"]
    return spec


def _series(registry: CollectorRegistry) -> Iterator[str]:
    """Yield the names of all series of a process."""
    for collector in set(registry._names_to_collectors.values()):
        described = next(iter(collector.describe()))
        yield from (described.name + suffix for suffix in SUFFIXES[described.type])


def _expanded(query: str, recorded: dict[str, str]) -> str:
    """Return a query with the names of recording rules replaced by their queries."""
    while names := [name for name in re.findall(r"specdec:[\w:]+", query) if name in recorded]:
        query = query.replace(names[0], f"({recorded[names[0]]})")
    return query


def test_releases_do_not_overwrite_each_other_s_dashboard(full: list[Manifest]) -> None:
    ((name, text),) = named(full, "ConfigMap", "metrics-dashboard")["data"].items()
    dashboard = json.loads(text)
    assert name == "specdec.ns.prod.json"
    assert dashboard["title"] == "specdec ns/prod"
    assert re.fullmatch(r"[0-9a-f]{40}", dashboard["uid"])


def test_monitors_label_series_as_the_rules_expect(full: list[Manifest]) -> None:
    for monitor in of_kind(full, "ServiceMonitor", "PodMonitor"):
        (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        given = {each["targetLabel"]: each["replacement"] for each in endpoint["relabelings"]}
        component = monitor["metadata"]["labels"]["app.kubernetes.io/component"]
        assert given == {"component": component, "release": "prod"}


def _files(full: list[Manifest]) -> dict[str, Any]:
    """Return the files for a Prometheus without the operator, by the last two words of each file's name."""
    data = named(full, "ConfigMap", "metrics-prometheus")["data"]
    assert all(name.startswith("specdec.ns.prod.") for name in data), "files of all releases lie in one folder"
    return {name.removeprefix("specdec.ns.prod."): yaml.safe_load(text) for name, text in data.items()}


def test_a_prometheus_without_the_operator_reads_the_same_rules(full: list[Manifest], rules: dict[str, Any]) -> None:
    assert _files(full)["rules.yaml"] == rules


def test_a_prometheus_without_the_operator_reads_the_ports_of_monitors(full: list[Manifest]) -> None:
    (job,) = _files(full)["scrape.yaml"]["scrape_configs"]
    kept, *labels = job["relabel_configs"]
    read = {
        component
        for component, template in pods(full).items()
        for port in (each.get("name") for each in template["spec"]["containers"][0].get("ports", []))
        if re.fullmatch(kept["regex"], f"{component};{port}")
    }
    monitored = {each["metadata"]["labels"]["app.kubernetes.io/component"]
                 for each in of_kind(full, "ServiceMonitor", "PodMonitor")}  # fmt: skip
    assert read == monitored
    assert {each["target_label"] for each in labels} == {"component", "namespace", "pod", "release"}
    (found,) = job["kubernetes_sd_configs"]
    selector = dict(pair.split("=") for pair in found["selectors"][0]["label"].split(","))
    assert all(selects(selector, template) for template in pods(full).values())


@needs_promtool
def test_promtool_accepts_the_files_for_a_prometheus_without_the_operator(full: list[Manifest], tmp_path: Path) -> None:
    """Pod discovery is left out, since Debian's promtool does not support it."""
    assert PROMTOOL
    (job,) = _files(full)["scrape.yaml"]["scrape_configs"]
    jobs = {"scrape_configs": [{name: value for name, value in job.items() if name != "kubernetes_sd_configs"}]}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(jobs), encoding="utf-8")
    command = [PROMTOOL, "check", "config", "--syntax-only", "prometheus.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_rules_and_their_cases(rules: dict[str, Any], tmp_path: Path) -> None:
    assert PROMTOOL
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    shutil.copy(CASES, tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run([PROMTOOL, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("process", _registries())
def test_promtool_accepts_what_is_exported(process: str) -> None:
    assert PROMTOOL
    page = generate_latest(_registries()[process])
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")

"""The chart passes lint and packages, and the package has the tested content."""

import tarfile
from pathlib import Path

import pytest

from tests.helm.cases import values_of
from tests.helm.engine import CHART, ChartRefused, Helm

REDIS = {"redis": {"external": {"url": "redis://redis:6379/0"}}}


def test_lint_has_nothing_to_say(helm: Helm, case: str) -> None:
    assert helm.lint(CHART, values_of(case)) == []


def test_the_package_renders_what_the_folder_renders(helm: Helm, package: Path, case: str) -> None:
    assert helm.render(package, values_of(case)) == helm.render(CHART, values_of(case))


def test_the_package_holds_the_schema_and_no_test_values(package: Path) -> None:
    with tarfile.open(package) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"values.schema.json", "README.md", "CHANGELOG.md", "files/rules.yaml", "files/generate.py"} <= names
    assert not [name for name in names if name.startswith("ci/")]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"drafters": {}}, "drafters"),
        ({"drafter": {"replica": 2}}, "replica"),
        ({"drafter": {"replicas": "2"}}, "replicas"),
        ({"drafter": {"replicas": -1}}, "replicas"),
        ({"verifier": {"image": {"digest": "sha256:abc"}}}, "digest"),
        ({"verifier": {"image": {"tag": "latest"}}}, "tag"),
        ({"verifier": {"autoscaling": {"kind": "ratio"}}}, "kind"),
        ({"drafter": {"autoscaling": {"kind": ["hpa", "keda"]}}}, "kind"),
        ({"verifier": {"config": {"kv_byte": 1}}}, "kv_byte"),
        ({"verifier": {"config": {"kv_bytes": "much"}}}, "kv_bytes"),
        ({"verifier": {"config": {"address": "0.0.0.0:1"}}}, "address"),
        ({"gateway": {"config": {"redis_url": "redis://:secret@redis"}}}, "redis_url"),
        ({"gateway": {"config": {"kv": {"redis_url": "redis://:secret@redis"}}}}, "redis_url"),
        ({"gateway": {"config": {"kv": {"key": "ab"}}}}, "key"),
        ({"ratioController": {"config": {"lease": {"name": "other"}}}}, "lease"),
        ({"ratioController": {"config": {"scaling": {"maximum": 99}}}}, "maximum"),
        ({"redis": {"external": {}, "kv": {"url": "redis://blocks"}}}, "url"),
        ({"speculation": {"minSpeedup": 0}}, "minSpeedup"),
        ({"speculation": {"gamma": 17}}, "gamma"),
        ({"speculation": {"mode": "guess"}}, "mode"),
        ({"tls": {"mode": "selfMade"}}, "mode"),
        ({"metrics": {"interval": "15"}}, "interval"),
        ({"networkPolicy": {"redisPorts": [70000]}}, "redisPorts"),
    ],
)
def test_the_package_refuses_a_wrong_value_by_name(
    helm: Helm, package: Path, values: dict[str, object], named: str
) -> None:
    helm.render(package, REDIS)
    with pytest.raises(ChartRefused, match=named):
        helm.render(package, REDIS | values)


def test_the_globals_of_an_umbrella_chart_are_let_through(helm: Helm, package: Path) -> None:
    assert helm.render(package, {**REDIS, "global": {"ofTheUmbrella": True}})

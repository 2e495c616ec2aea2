"""values.yaml, its schema, its table and the templates list the same values."""

import json
import re
import runpy
from typing import Any

import pytest

from tests.helm.engine import CHART

DOCS = CHART.parent / "docs"
TEMPLATES = "\n".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*.*"))


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """The functions that generate the schema and the table."""
    return runpy.run_path(str(DOCS / "chart.py"))


def test_the_schema_is_fresh(made: dict[str, Any]) -> None:
    kept = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert kept == json.loads(json.dumps(made["schema"]())), "run `make docs`"


def test_the_table_is_fresh(made: dict[str, Any]) -> None:
    page = (CHART / "README.md").read_text(encoding="utf-8")
    assert page == made["readme"](page), "run `make docs`"


def test_every_value_says_what_it_means(made: dict[str, Any]) -> None:
    found = made["comments"]()
    assert len(found) > 200
    assert [path for path, (_, words) in found.items() if not words] == []


def test_every_rule_of_the_schema_is_for_some_value(made: dict[str, Any]) -> None:
    paths = made["comments"]()
    idle = [pattern for pattern, _ in made["RULES"] if not any(re.fullmatch(pattern, path) for path in paths)]
    assert idle == []


def test_every_map_is_closed_but_those_of_kubernetes(made: dict[str, Any]) -> None:
    def open_maps(schema: dict[str, Any], path: str) -> list[str]:
        found = [path] if schema.get("properties") and schema.get("additionalProperties") is not False else []
        for key, inner in schema.get("properties", {}).items():
            found += open_maps(inner, f"{path}.{key}".lstrip("."))
        return found

    schema = made["schema"]()
    assert open_maps(schema, "") == ["global"]
    assert all(definition.get("additionalProperties", False) is False for definition in schema["$defs"].values())


def test_every_value_is_used(made: dict[str, Any]) -> None:
    """Searches for the last part of a value's name, which every template that uses the value contains."""
    unused = [path for path in made["comments"]() if not re.search(rf"\b{path.rpartition('.')[2]}\b", TEMPLATES)]
    passed_on_whole = {"tls.certManager.issuerRef.group"}
    assert set(unused) == passed_on_whole


def test_the_version_of_the_app_is_the_project_s() -> None:
    chart = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    project = (CHART.parent / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    assert version
    assert f'appVersion: "{version[1]}"' in chart


def test_the_changelog_knows_this_version() -> None:
    version = re.search(r"^version: (.+)", (CHART / "Chart.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    assert f"## {version[1]}" in (CHART / "CHANGELOG.md").read_text(encoding="utf-8")

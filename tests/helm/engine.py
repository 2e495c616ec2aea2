"""Helm for the tests: the SDK's engine, or the `helm` on PATH."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

CHART = Path(__file__).parents[2] / "helm"
RELEASE, NAMESPACE = "prod", "ns"
WARNING = 2
"""Lowest severity of reported lint messages. Lower ones are a matter of style."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The YAML loader: ten times as fast in C, which some builds of PyYAML lack."""

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class ChartRefused(Exception):
    """The engine refused values or a template, with a message of its own."""


class Helm(Protocol):
    """Interface of a Helm engine; `chart` is a folder or a package."""

    def render(self, chart: Path, values: Values, release: str = RELEASE) -> dict[str, str]:
        """Return the rendered text of each template, including NOTES.txt."""

    def lint(self, chart: Path, values: Values) -> list[str]:
        """Return the lint messages."""

    def package(self, chart: Path, destination: Path) -> Path:
        """Package a folder and return the path of the package."""


class Sdk:
    """The Go engine from a Python wheel."""

    def render(self, chart: Path, values: Values, release: str = RELEASE) -> dict[str, str]:
        """See Helm.render."""
        from helm_python.chart import Chart
        from helm_python.errors import HelmError

        try:
            with Chart.load(chart) as loaded:
                return loaded.render(dict(values), name=release, namespace=NAMESPACE)
        except HelmError as error:
            raise ChartRefused(str(error)) from error

    def lint(self, chart: Path, values: Values) -> list[str]:
        """See Helm.lint."""
        from helm_python.chart import lint

        report = lint(chart, dict(values), strict=True, kube_version="1.30.0")
        return [str(message) for message in report["messages"] if message["severity"] >= WARNING]

    def package(self, chart: Path, destination: Path) -> Path:
        """See Helm.package."""
        from helm_python.chart import package

        return Path(package(chart, destination=destination))


class Binary:
    """The `helm` command."""

    def render(self, chart: Path, values: Values, release: str = RELEASE) -> dict[str, str]:
        """See Helm.render."""
        command = [
            "install",
            release,
            str(chart),
            "--namespace",
            NAMESPACE,
            "--dry-run=client",
            "-o",
            "json",
            "-f",
            "-",
        ]
        installed = json.loads(self._run(command, values))
        texts: dict[str, str] = {"templates/NOTES.txt": installed["info"].get("notes", "")}
        hooks = [f"# Source: {hook['path']}\n{hook['manifest']}" for hook in installed.get("hooks", [])]
        for part in [*installed["manifest"].split("\n---\n"), *hooks]:
            source = part.partition("# Source: ")[2].partition("\n")[0]
            texts[source] = f"{texts.get(source, '')}\n---\n{part}"
        return texts

    def lint(self, chart: Path, values: Values) -> list[str]:
        """See Helm.lint."""
        try:
            self._run(["lint", str(chart), "--strict", "-f", "-"], values)
        except ChartRefused as error:
            return [str(error)]
        return []

    def package(self, chart: Path, destination: Path) -> Path:
        """See Helm.package."""
        self._run(["package", str(chart), "--destination", str(destination)], {})
        return next(destination.glob("*.tgz"))

    def _run(self, arguments: list[str], values: Values) -> str:
        text = yaml.safe_dump(dict(values))
        done = subprocess.run(["helm", *arguments], input=text, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise ChartRefused(done.stderr)
        return done.stdout


def find_helm() -> Helm | None:
    """Return an engine, or None if neither is available."""
    try:
        import helm_python.chart  # noqa: F401 - only whether it is there
    except ImportError:
        return Binary() if shutil.which("helm") else None
    return Sdk()


def manifests(texts: Mapping[str, str]) -> list[Manifest]:
    """Return the objects in rendered templates."""
    objects = (text for name, text in sorted(texts.items()) if not name.endswith("NOTES.txt"))
    return [manifest for text in objects for manifest in yaml.load_all(text, _LOADER) if manifest]


def notes(texts: Mapping[str, str]) -> str:
    """Return the text that Helm prints after an install."""
    return next(text for name, text in texts.items() if name.endswith("NOTES.txt"))

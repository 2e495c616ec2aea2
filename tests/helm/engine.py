"""Helm itself, as the tests use it: the SDK's engine, or the `helm` on PATH."""

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
"""Severity of lint messages; what is below is a matter of taste."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C takes a tenth of the time; not every build of PyYAML has it."""

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class ChartRefused(Exception):
    """The engine refused values or a template; the message is its own."""


class Helm(Protocol):
    """What is asked of an engine; `chart` is a folder or a package."""

    def render(self, chart: Path, values: Values, release: str = RELEASE) -> dict[str, str]:
        """Template to text, NOTES.txt among them."""

    def lint(self, chart: Path, values: Values) -> list[str]:
        """Complaints."""

    def package(self, chart: Path, destination: Path) -> Path:
        """The package made of a folder."""


class Sdk:
    """The Go engine in a wheel."""

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
    """The command line."""

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
    """An engine, or None where there is neither."""
    try:
        import helm_python.chart  # noqa: F401 - only whether it is there
    except ImportError:
        return Binary() if shutil.which("helm") else None
    return Sdk()


def manifests(texts: Mapping[str, str]) -> list[Manifest]:
    """The objects in rendered templates."""
    objects = (text for name, text in sorted(texts.items()) if not name.endswith("NOTES.txt"))
    return [manifest for text in objects for manifest in yaml.load_all(text, _LOADER) if manifest]


def notes(texts: Mapping[str, str]) -> str:
    """What is printed after an install."""
    return next(text for name, text in texts.items() if name.endswith("NOTES.txt"))

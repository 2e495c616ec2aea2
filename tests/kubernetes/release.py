"""One release of the chart, installed by Helm itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.engine import RELEASE, Manifest, Values


class Release:
    """The chart in one namespace. Close it after use."""

    def __init__(self, chart: Path, kubeconfig: dict[str, Any], namespace: str) -> None:
        config = pytest.importorskip("helm_python.config", reason="helm-python-sdk is not installed")
        self._chart = str(chart)
        self._namespace = namespace
        self._helm = config.Config(kubeconfig_content=json.dumps(kubeconfig), namespace=namespace)

    def install(self, values: Values) -> None:
        """Install the first revision."""
        self._helm.install(self._chart, RELEASE, dict(values), namespace=self._namespace)

    def upgrade(self, values: Values) -> None:
        """Install another revision."""
        self._helm.upgrade(self._chart, RELEASE, dict(values), namespace=self._namespace)

    def rollback(self) -> None:
        """Roll back to the previous revision, as a new revision."""
        self._helm.rollback(RELEASE)

    def uninstall(self) -> None:
        """Uninstall the release."""
        self._helm.uninstall(RELEASE)

    def history(self) -> list[tuple[int, str]]:
        """Return the revisions with their status."""
        return [(each["revision"], each["status"]) for each in self._helm.history(RELEASE)]

    def manifests(self) -> list[Manifest]:
        """Return the objects of the last revision, as Helm sent them."""
        text = self._helm.status(RELEASE)["manifest"]
        return [each for each in yaml.safe_load_all(text) if each]

    def close(self) -> None:
        """Close the connection. Installed objects remain."""
        self._helm.close()

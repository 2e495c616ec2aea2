"""Access to the cluster of KUBECONFIG through kubectl and Helm, in a namespace of its own for each test module."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.fits import OLDER, SMALL, over
from tests.helm.cases import values_of
from tests.helm.engine import CHART

RELEASE = "trial"
PREFIX = f"{RELEASE}-specdec"
PATIENCE = 300.0
"""Timeout of a change in the cluster, in seconds."""
_WAITING: Mapping[str, Any] = {"timeout": 600, "wait": "watcher"}
GATEWAY_IMAGE, STORE_IMAGE = "specdec/gateway:0.1.0", "valkey/valkey:8.1.4-alpine"
_CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True)
class Cluster:
    """One namespace of the cluster."""

    namespace: str
    chart: Path = CHART
    is_older: bool = False
    """Whether the cluster is too old for gRPC probes. `chart` is then a rewritten copy."""

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Return the output of kubectl.

        Raises:
            subprocess.CalledProcessError: kubectl failed; `stderr` has the reason.
        """
        return _run("kubectl", "--namespace", self.namespace, *arguments, text=text)

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects of the namespace that `kubectl get` selects."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "--output", "json"))["items"]
        return found

    def install(self, case: str, **values: object) -> None:
        """Install a file of helm/ci, or upgrade to it, and wait until it serves."""
        merged = over(over(values_of(case), SMALL), values)
        if self.is_older:
            merged = over(merged, OLDER)
        with closing(self._helm()) as helm:
            if helm.list():
                helm.upgrade(self.chart, RELEASE, merged, namespace=self.namespace, **_WAITING)
            else:
                helm.install(self.chart, RELEASE, merged, namespace=self.namespace, **_WAITING)

    def upgrade_unchanged(self) -> None:
        """Upgrade to the same chart and values, which runs the hooks and changes no pod."""
        with closing(self._helm()) as helm:
            helm.upgrade(self.chart, RELEASE, namespace=self.namespace, reuse_values=True, **_WAITING)

    def test(self) -> str:
        """Return the pod logs printed by `helm test --logs`. An error contains them too."""
        with closing(self._helm()) as helm:
            try:
                logs: str = helm.test(RELEASE, timeout=600, logs=True)["logs"]
            except Exception as error:
                error.add_note(self.kubectl("logs", f"{PREFIX}-test", "--tail=40"))
                raise
        return logs

    def uninstall(self) -> None:
        """Remove the release and wait until its objects are gone."""
        with closing(self._helm()) as helm:
            helm.uninstall(RELEASE, timeout=600, wait="watcher")

    def _helm(self) -> Any:
        """Run Helm's own engine on the cluster of KUBECONFIG."""
        config = pytest.importorskip("helm_python.config", reason="helm-python-sdk is not installed")
        return config.Config(namespace=self.namespace)

    def apply(self, *objects: Mapping[str, object]) -> None:
        """Create or update objects."""
        self.kubectl("apply", "--filename", "-", text=yaml.safe_dump_all(json.loads(json.dumps(objects))))

    def pod(self, name: str, *command: str, **environment: str) -> dict[str, object]:
        """Return a confined pod with the gateway's image, which has Python."""
        container = {
            "name": name,
            "image": GATEWAY_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": list(command),
            "env": [{"name": key, "value": value} for key, value in environment.items()],
            "securityContext": _CONFINED,
        }
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 150, "containers": [container]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}

    def reaches(self, name: str, host: str, port: int) -> bool:
        """Whether a new pod of that name can open a connection."""
        script = f"import socket; socket.create_connection(({host!r}, {port}), timeout=10)"
        self.kubectl("delete", "pod", name, "--ignore-not-found")
        self.apply(self.pod(name, "python", "-c", script))
        wait(lambda: self._phase(name) in ("Succeeded", "Failed"))
        return self._phase(name) == "Succeeded"

    @contextmanager
    def traffic(self) -> Iterator[dict[str, Any]]:
        """Send load while the block runs. The dict is filled with the report after the block."""
        script = (Path(__file__).parent / "traffic.py").read_text(encoding="utf-8")
        address = f"http://{PREFIX}-gateway:8000"
        self.kubectl("delete", "pod", "traffic", "--ignore-not-found")
        self.apply(self.pod("traffic", "python", "-u", "-c", script, GATEWAY=address))
        wait(lambda: self._phase("traffic") == "Running")
        report: dict[str, Any] = {}
        try:
            yield report
        finally:
            self.kubectl("exec", "traffic", "--", "python", "-c", "import os; os.kill(1, 15)")
            wait(lambda: self._phase("traffic") in ("Succeeded", "Failed"))
            report |= json.loads(self.kubectl("logs", "traffic").strip().splitlines()[-1])

    def _phase(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "--output", "jsonpath={.status.phase}")


def store() -> tuple[dict[str, object], ...]:
    """Return a store named `redis`, as an installation has one, with the Secret of its URL."""
    labels = {"app": "redis"}
    command = ["valkey-server", "--protected-mode", "no", "--save", "", "--dir", "/tmp"]
    container = {
        "name": "redis",
        "image": STORE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "securityContext": _CONFINED,
    }
    return (
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "redis", "labels": labels},
            "spec": {"containers": [container]},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "redis"},
            "spec": {"selector": labels, "ports": [{"port": 6379}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "redis-url"},
            "stringData": {"url": "redis://redis:6379/0"},
        },
    )


def wait(holds: Callable[[], object]) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it does not within PATIENCE.
    """
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:.0f} s")
        time.sleep(1)


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, check=False, capture_output=True, text=True, timeout=900)
    if done.returncode:
        failed = subprocess.CalledProcessError(done.returncode, " ".join(command), done.stdout, done.stderr)
        failed.add_note(done.stdout + done.stderr)
        raise failed
    return done.stdout

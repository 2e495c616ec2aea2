"""Access to the cluster of KUBECONFIG through kubectl and Helm, in a namespace of its own for each test module."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.fits import fitted, over
from tests.cluster.pods import callers, namespace, python_pod, store
from tests.helm.engine import CHART

RELEASE = "trial"
PREFIX = f"{RELEASE}-specdec"
PATIENCE = 300.0
"""Timeout of a change in the cluster, in seconds."""
_WAITING: Mapping[str, Any] = {"timeout": 600, "wait": "watcher"}
_HERE = Path(__file__).parent
_STATE = (
    ("get", "deployments,statefulsets,jobs,pods,services,endpointslices", "--output", "wide"),
    ("get", "events", "--sort-by=.lastTimestamp"),
    ("logs", "traffic", "--tail=5"),
    (
        "logs",
        "--selector=app.kubernetes.io/name=specdec",
        "--all-containers",
        "--prefix",
        "--tail=40",
        "--max-log-requests=50",
        "--ignore-errors",
    ),
)
"""Commands of kubectl that show why a test failed."""


@dataclass(frozen=True)
class Cluster:
    """One namespace of the cluster."""

    namespace: str
    chart: Path = CHART
    registry: str = ""
    """Registry of all images. Without one, the nodes have the images."""
    values: Mapping[str, object] = field(default_factory=dict)
    """Values that this cluster needs in every install."""

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Return the output of kubectl.

        Raises:
            subprocess.CalledProcessError: kubectl failed; the note has its output.
        """
        return run("kubectl", "--namespace", self.namespace, *arguments, text=text)

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects of the namespace that `kubectl get` selects."""
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *arguments, "--output", "json"))["items"]
        return found

    def pods(self, tier: str) -> list[str]:
        """Return the names of a tier's pods, without those that are terminating."""
        found = self.objects("pods", "--selector", f"app.kubernetes.io/component={tier}")
        return [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]

    def create(self) -> None:
        """Create the namespace, and wait until it takes pods: each needs the account that a controller creates."""
        self.apply(namespace(self.namespace))
        wait(lambda: self.objects("serviceaccounts"))

    def create_store(self) -> None:
        """Create the store and the Secrets of callers, and wait until the store is ready."""
        self.apply(*store(self.registry), *callers())
        self.kubectl("wait", "--for=condition=Ready", "pod/redis", f"--timeout={PATIENCE:.0f}s")

    def delete(self) -> None:
        """Delete the namespace, and do not wait for it."""
        self.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false")

    def state(self) -> str:
        """Return the objects, events and logs of the namespace."""
        return "\n".join(self._shown(*command) for command in _STATE)

    def install(self, case: str, **values: object) -> None:
        """Install a file of helm/ci, or upgrade to it, and wait until it serves."""
        merged = over(over(fitted(case), values), self.values)
        with closing(self._helm()) as helm:
            change = helm.upgrade if helm.list(all_states=True) else helm.install
            change(self.chart, RELEASE, merged, namespace=self.namespace, **_WAITING)

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
                error.add_note(self._shown("logs", f"{PREFIX}-test", "--tail=40"))
                raise
        return logs

    def uninstall(self) -> None:
        """Remove the release, if there is one. Pods end later, since Helm leaves them to the garbage collector.

        Helm does not wait, since its watcher may miss a deletion (helm/helm#31766).
        """
        with closing(self._helm()) as helm:
            if helm.list(all_states=True):
                helm.uninstall(RELEASE, timeout=600)

    def _helm(self) -> Any:
        """Run Helm's own engine on the cluster of KUBECONFIG."""
        config = pytest.importorskip("helm_python.config", reason="helm-python-sdk is not installed")
        return config.Config(namespace=self.namespace)

    def apply(self, *objects: Mapping[str, object]) -> None:
        """Create or update objects."""
        self.kubectl("apply", "--filename", "-", text=yaml.safe_dump_all(json.loads(json.dumps(objects))))

    def edge_is(self, wanted: str, name: str, host: str, port: int) -> bool:
        """Whether a port is `open` or `closed`, as wanted, to a new pod of that name, once policies have settled."""
        self._replace_pod(name, "edge.py", WANTED=wanted, HOST=host, PORT=str(port))
        wait(lambda: self._phase(name) in ("Succeeded", "Failed"))
        return self._phase(name) == "Succeeded"

    @contextmanager
    def traffic(self) -> Iterator[dict[str, Any]]:
        """Send load while the block runs. The dict is filled with the report after the block."""
        self._replace_pod("traffic", "traffic.py", GATEWAY=f"http://{PREFIX}-gateway:8000")
        wait(lambda: self._phase("traffic") == "Running" and self.kubectl("logs", "traffic"))
        report: dict[str, Any] = {}
        try:
            yield report
        finally:
            # The pod may end before the command does, which then fails.
            with suppress(subprocess.CalledProcessError):
                self.kubectl("exec", "traffic", "--", "python", "-c", "import os; os.kill(1, 15)")
            wait(lambda: self._phase("traffic") in ("Succeeded", "Failed"))
            report |= json.loads(self.kubectl("logs", "traffic").strip().splitlines()[-1])

    def _replace_pod(self, name: str, script: str, **environment: str) -> None:
        """Create a pod that runs a script of this folder, in place of one from before."""
        self.kubectl("delete", "pod", name, "--ignore-not-found")
        command = ("python", "-u", "-c", (_HERE / script).read_text(encoding="utf-8"))
        self.apply(python_pod(name, command, environment, self.registry))

    def _phase(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "--output", "jsonpath={.status.phase}")

    def _shown(self, *arguments: str) -> str:
        """Return the output of kubectl, or why there is none."""
        try:
            return self.kubectl(*arguments)
        except subprocess.CalledProcessError as error:
            return "\n".join(error.__notes__)


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


def run(*command: str, text: str | None = None) -> str:
    """Return the output of a command.

    Raises:
        subprocess.CalledProcessError: the command failed; the note has its output.
    """
    done = subprocess.run(command, input=text, check=False, capture_output=True, text=True, timeout=900)
    if done.returncode:
        failed = subprocess.CalledProcessError(done.returncode, " ".join(command), done.stdout, done.stderr)
        failed.add_note(done.stdout + done.stderr)
        raise failed
    return done.stdout

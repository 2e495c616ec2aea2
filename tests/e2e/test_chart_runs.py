"""The services run with their images' files, their extras' packages, the chart's settings and mutual TLS.

They answer the chart's probes and pass the test that `helm test` runs.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specdec.cli.local import health
from specdec.cli.local.processes import Children
from tests.architecture.extras import PACKAGE_OF, RUN, command_with
from tests.architecture.image import build
from tests.e2e.system import START_SECONDS, environment, wait_until
from tests.helm.engine import CHART, NAMESPACE, RELEASE, Manifest, find_helm, manifests
from tests.helm.objects import TIERS, config, pods
from tests.integration.serving.certificates import Authority
from tests.integration.sessions.server import Server
from tests.support.addresses import free_addresses


class Cluster:
    """One pod of each tier, each as a process on loopback."""

    def __init__(self, objects: list[Manifest], folder: Path, redis_url: str) -> None:
        self.objects = objects
        self.folder = folder
        self._redis_url = redis_url
        kinds = ("address", "http", "health", "admin")
        places = [(tier, kind) for tier in TIERS for kind in kinds]
        self._at = dict(zip(places, free_addresses(len(places)), strict=True))
        authority = Authority()
        for tier in TIERS:
            authority.issue(folder / tier, f"{RELEASE}-specdec-{tier}.{NAMESPACE}.svc")

    def at(self, tier: str, kind: str) -> str:
        """Return the address at which a tier listens. `kind` is `address`, `http`, `health` or `admin`."""
        return self._at[tier, kind]

    def start(self, tier: str) -> subprocess.Popen[bytes]:
        """Start the tier's container: its image's files, its extra's packages, the chart's arguments and settings."""
        image = self._image(tier)
        path = self.folder / f"{tier}.yaml"
        path.write_text(yaml.safe_dump(self._settings(tier)), encoding="utf-8")
        container = pods(self.objects)[tier]["spec"]["containers"][0]
        arguments = [str(path) if each == "/config/config.yaml" else each for each in container["args"]]
        with (self.folder / f"{tier}.log").open("w") as log:
            return subprocess.Popen(
                command_with(tier, RUN, *arguments),
                cwd=image,
                env={**environment(), "PYTHONPATH": str(image), "SPECDEC_GATEWAY_REDIS_URL": self._redis_url},
                stdout=log,
                stderr=log,
            )

    def _image(self, tier: str) -> Path:
        folder = self.folder / f"{tier}-image"
        if not folder.exists():
            build(PACKAGE_OF[tier], folder)
        return folder

    def _settings(self, tier: str) -> dict[str, object]:
        """Return the chart's settings, with this machine's addresses and paths in place of a pod's."""
        settings = config(self.objects, tier)
        for kind in settings.keys() & {"address", "http", "health", "admin"}:
            settings[kind] = self.at(tier, kind)
        for name in ("certificate", "key", "ca"):
            settings["tls"][name] = settings["tls"][name].replace("/tls/", f"{self.folder / tier}/")
        settings["model"]["path"] = settings["model"]["path"].replace("/app/", f"{self._image(tier)}/")
        dialled = {"gateway": "verifier", "verifier": "drafter"}.get(tier)
        if dialled:
            settings["discovery"]["names"] = [self.at(dialled, "address")]
        return settings

    def probe(self, tier: str, name: str) -> Callable[[], bool]:
        """Return a probe of the tier's container, called in plaintext as by the kubelet."""
        asked = pods(self.objects)[tier]["spec"]["containers"][0][f"{name}Probe"]["grpc"]["service"]
        return lambda: _serving(self.at(tier, "health"), asked)


def _serving(address: str, service: str) -> bool:
    with grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=1)
        except grpc.RpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    helm = find_helm()
    if helm is None:
        pytest.skip("neither helm-python-sdk nor a helm on PATH")
    values = yaml.safe_load((CHART / "ci" / "mtls-redis-tls-values.yaml").read_text(encoding="utf-8"))
    objects = manifests(helm.render(CHART, values))
    with ExitStack() as stack:
        store = tmp_path / "valkey"
        store.mkdir()
        server = Server(store, stack.enter_context(Children(grace=5)))
        running = Cluster(objects, tmp_path, server.url)
        for tier in TIERS:
            process = running.start(tier)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        yield running


def test_the_chart_s_processes_pass_the_chart_s_probes_and_test(cluster: Cluster) -> None:
    for tier in TIERS:
        wait_until(cluster.probe(tier, "liveness"), START_SECONDS)
        wait_until(cluster.probe(tier, "startup"), START_SECONDS)
    for tier in reversed(TIERS):
        wait_until(cluster.probe(tier, "readiness"), START_SECONDS)
    assert not health.grpc_serving(cluster.at("verifier", "address")), "the verifier speaks plaintext"
    wait_until(lambda: "specdec_drafter_streams 1.0" in _metrics(cluster.at("drafter", "http")))
    assert re.search(r"32 tokens, the same with \d+ drafted tokens and without", _generated(cluster))
    assert "specdec_drafter_tokens_total 0.0" not in _metrics(cluster.at("drafter", "http"))


def _metrics(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=60) as reply:
        text: str = reply.read().decode()
    return text


def _generated(cluster: Cluster) -> str:
    container = pods(cluster.objects)["test"]["spec"]["containers"][0]
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    gateway = f"http://{cluster.at('gateway', 'http')}"
    done = subprocess.run(
        [sys.executable, *container["command"][1:], *container["args"]],
        env={**os.environ, **given, "GATEWAY": gateway},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

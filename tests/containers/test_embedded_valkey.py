"""The chart's embedded Valkey answers other pods, also as Debian's build, which by default accepts only loopback."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from images.__main__ import IMAGES
from images.engine import Podman
from tests.helm.cases import values_of
from tests.helm.engine import CHART, find_helm, manifests
from tests.helm.objects import pods


@pytest.fixture(params=["valkey", "valkey-kv"])
def address(request: pytest.FixtureRequest, podman: Podman, network: Path, tmp_path: Path) -> Iterator[str]:
    """Start a container with the arguments and confinement of the chart's pod, and return its address."""
    helm = find_helm()
    if helm is None:
        pytest.skip("neither helm-python-sdk nor a helm on PATH")
    (container,) = pods(manifests(helm.render(CHART, values_of("minimal-cpu"))))[request.param]["spec"]["containers"]
    tmp_path.chmod(0o777)
    confined = ("--user=10001:10001", "--read-only", "--cap-drop=ALL", f"--volume={tmp_path}:/data")
    entry = f"--entrypoint={json.dumps(container['command'])}"
    made = podman.ask("run", "--detach", *confined, entry, IMAGES["valkey"].name, *container["args"])
    try:
        yield podman.ask("container", "inspect", "--format", "{{.NetworkSettings.IPAddress}}", made)
    finally:
        podman.ask("rm", "--force", "--time", "0", made)


def test_another_pod_is_answered_without_a_password(address: str) -> None:
    with Redis(host=address, socket_timeout=5) as client:
        deadline = time.monotonic() + 60
        while not _answers(client):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert client.set("key", "value")


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False

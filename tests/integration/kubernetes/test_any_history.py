"""After any sequence of events, the endpoints match the existing objects."""

import asyncio
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.discovery.cluster import ClusterSettings
from gateway.discovery.sources import GatewayDiscoverySettings, KubernetesSource, endpoints_of
from tests.fake_kubernetes import FakeKubernetes
from tests.fake_kubernetes.slices import SERVICE, SLICES, pod, slice_of
from tests.support.gateway_fakes import until

PODS = st.lists(
    st.builds(
        pod,
        st.integers(1, 5),
        ready=st.booleans(),
        serving=st.booleans(),
        terminating=st.booleans(),
    ),
    max_size=4,
)
WRITES = st.tuples(st.just("write"), st.sampled_from("abc"), PODS)
DELETES = st.tuples(st.just("delete"), st.sampled_from("abc"), st.just([]))
FAULTS = st.tuples(st.sampled_from(["drop", "compact", "down", "up", "breathe"]), st.just(""), st.just([]))
HISTORIES = st.lists(st.one_of(WRITES, WRITES, DELETES, FAULTS), max_size=25)


def happen(api: FakeKubernetes, what: str, name: str, pods: list[dict[str, object]]) -> None:
    """Apply one event to the objects or to the server."""
    exists = any(each["metadata"]["name"] == name for each in api.store.collection(SLICES)[0])
    match what:
        case "write" if exists:
            api.store.update(SLICES, name, lambda _: slice_of(name, *pods))
        case "write":
            api.store.create(SLICES, slice_of(name, *pods))
        case "delete" if exists:
            api.store.delete(SLICES, name)
        case "drop":
            api.drop_watches()
        case "compact":
            api.store.compact()
        case "down" | "up":
            api.down = what == "down"


@settings(max_examples=20)
@given(HISTORIES)
def test_the_endpoints_converge(history: list[tuple[str, str, list[dict[str, object]]]]) -> None:
    asyncio.run(converge(history))


async def converge(history: list[tuple[str, str, list[dict[str, object]]]]) -> None:
    with FakeKubernetes() as api, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(json.dumps(api.kubeconfig()))
        settings = GatewayDiscoverySettings(kind="kubernetes", names=(SERVICE,), watch=30.0)
        source = KubernetesSource(settings, ClusterSettings(kubeconfig=path, namespace="ns"))
        snapshots = []

        async def follow() -> None:
            async for endpoints in source.snapshots():
                snapshots.append(endpoints)

        task = asyncio.create_task(follow())
        try:
            for what, name, pods in history:
                happen(api, what, name, pods)
                await asyncio.sleep(0.02 if what == "breathe" else 0)
            api.down = False
            expected = endpoints_of(api.store.collection(SLICES)[0], "grpc")
            await until(lambda: snapshots and snapshots[-1] == expected)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

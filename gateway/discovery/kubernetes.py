"""A source of endpoints that watches EndpointSlices through the Kubernetes API."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial

from gateway.discovery.cluster import ClusterSettings, connect
from gateway.discovery.reflector import Reflector
from gateway.discovery.slices import endpoints_of
from specdec.serving.discovery import Endpoints


class KubernetesSource:
    """The pods behind Services of one namespace."""

    def __init__(self, cluster: ClusterSettings, services: Sequence[str], port: str, watch: float) -> None:
        """Make a source, which connects when it is first read.

        Args:
            cluster: the cluster and the namespace.
            services: the names of the Services.
            port: the name of the port in the slices.
            watch: seconds for which one watch lasts.
        """
        self._cluster = cluster
        self._services = services
        self._port = port
        self._reflector = Reflector(watch, slack=cluster.timeout)

    @property
    def age(self) -> float:
        """Seconds since the API server last sent something."""
        return self._reflector.age

    async def snapshots(self) -> AsyncGenerator[Endpoints]:
        """All endpoints, at once and after every change.

        Raises:
            ConfigError: there are no credentials for the cluster.
        """
        known: Endpoints | None = None
        async with connect(self._cluster) as api:
            from kubernetes.aio import client

            call = partial(
                client.DiscoveryV1Api(api).list_namespaced_endpoint_slice_without_preload_content,
                self._cluster.chosen_namespace,
                label_selector=f"kubernetes.io/service-name in ({','.join(self._services)})",
            )
            async for slices in self._reflector.states(call):
                found = endpoints_of(slices, self._port)
                if found != known:
                    known = found
                    yield found

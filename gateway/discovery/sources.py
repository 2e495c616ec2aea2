"""The settings of discovery, and the source that they name: a list, DNS, or EndpointSlices of the Kubernetes API."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.discovery.cluster import ClusterSettings, connect
from gateway.discovery.reflector import Object, Reflector
from specdec.serving.addresses import check_address, join_address
from specdec.serving.discovery import DnsSource, Endpoint, Endpoints, Source, StaticSource
from specdec.serving.settings import Section


class GatewayDiscoverySettings(Section):
    """How verifiers are discovered."""

    kind: Literal["static", "dns", "kubernetes"] = "static"
    """`static` is `verifiers`; `dns` resolves `names` again and again; `kubernetes` watches EndpointSlices."""
    names: tuple[str, ...] = ()
    """For `dns`: `host:port`, each of whose A and AAAA records is one verifier. For `kubernetes`: Services."""
    every: Annotated[float, Field(gt=0)] = 5.0
    """Seconds between resolutions, for `dns`."""
    port: str = "grpc"
    """Name of the Services' port, for `kubernetes`."""
    watch: Annotated[float, Field(ge=1, le=240)] = 60.0
    """Seconds for which one watch lasts, for `kubernetes`; a broken connection is noticed after this time at most."""

    @model_validator(mode="after")
    def _has_names(self) -> Self:
        if self.kind != "static" and not self.names:
            raise ValueError(f"names must not be empty for {self.kind}")
        if self.kind == "dns":
            for name in self.names:
                check_address(name)
        return self


class KubernetesSource:
    """Discovers the pods of Services in one namespace."""

    def __init__(self, settings: GatewayDiscoverySettings, cluster: ClusterSettings) -> None:
        """Create a source, which connects when it is first read."""
        self._settings = settings
        self._cluster = cluster
        self._reflector = Reflector(settings.watch, slack=cluster.timeout)

    @property
    def age(self) -> float:
        """Seconds since the API server last sent something."""
        return self._reflector.age

    async def snapshots(self) -> AsyncGenerator[Endpoints]:
        """Yield all endpoints, at once and after every change.

        Raises:
            ConfigError: there are no credentials for the cluster.
        """
        known: Endpoints | None = None
        async with connect(self._cluster) as api:
            from kubernetes.aio import client

            call = partial(
                client.DiscoveryV1Api(api).list_namespaced_endpoint_slice_without_preload_content,
                self._cluster.chosen_namespace,
                label_selector=f"kubernetes.io/service-name in ({','.join(self._settings.names)})",
            )
            async for slices in self._reflector.states(call):
                found = endpoints_of(slices, self._settings.port)
                if found != known:
                    known = found
                    yield found


def source_of(settings: GatewayDiscoverySettings, listed: Iterable[str], cluster: ClusterSettings) -> Source:
    """Return the source that the settings name; `listed` is the static list of addresses."""
    match settings.kind:
        case "static":
            return StaticSource(listed)
        case "dns":
            return DnsSource(settings.names, settings.every)
        case "kubernetes":
            return KubernetesSource(settings, cluster)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of one pod in one slice."""

    uid: str
    ipv6: bool
    address: str
    ready: bool
    serving: bool
    terminating: bool


def endpoints_of(slices: Iterable[Object], port: str) -> Endpoints:
    """The endpoints of all pods that serve, each pod once.

    https://kubernetes.io/docs/concepts/services-networking/endpoint-slices has the meaning of EndpointSlices.

    A pod may be in several slices: in one for each address family, and in two while it moves between them. It counts
    as ready or as terminating when one slice says so, because no pod comes back from termination. Pods that are ready
    and not terminating take new sessions, pods that terminate and still serve are draining, and all others are left
    out.
    """
    pods: dict[str, list[_Entry]] = {}
    for each in slices:
        for entry in _entries(each, port):
            pods.setdefault(entry.uid or entry.address, []).append(entry)
    found = {endpoint.address: endpoint for entries in pods.values() for endpoint in _merged(entries)}
    return tuple(sorted(found.values()))


def _merged(entries: list[_Entry]) -> Iterator[Endpoint]:
    first = min(entries, key=lambda entry: (entry.ipv6, entry.address))
    terminating = any(entry.terminating for entry in entries)
    if any(entry.ready for entry in entries) and not terminating:
        yield Endpoint(first.address, first.uid)
    elif terminating and any(entry.serving for entry in entries):
        yield Endpoint(first.address, first.uid, draining=True)


def _entries(each: Object, port: str) -> Iterator[_Entry]:
    numbers = [item["port"] for item in each.get("ports") or () if item.get("name") == port and item.get("port")]
    for item in (each.get("endpoints") or ()) if numbers else ():
        conditions = item.get("conditions") or {}
        # An unknown `ready` counts as true, and an unknown `serving` counts as `ready`.
        ready = conditions.get("ready") is not False
        serving = conditions.get("serving")
        yield _Entry(
            uid=(item.get("targetRef") or {}).get("uid", ""),
            ipv6=each.get("addressType") == "IPv6",
            address=join_address(item["addresses"][0], numbers[0]),
            ready=ready,
            serving=ready if serving is None else serving,
            terminating=bool(conditions.get("terminating")),
        )

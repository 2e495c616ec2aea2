"""The settings of discovery, and the source that they name."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.discovery.cluster import ClusterSettings
from gateway.discovery.kubernetes import KubernetesSource
from specdec.serving.discovery import DnsSource, Source, StaticSource
from specdec.serving.settings import Section, check_address


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


def source_of(settings: GatewayDiscoverySettings, listed: Iterable[str], cluster: ClusterSettings) -> Source:
    """The source that the settings name; `listed` is the static list of addresses."""
    match settings.kind:
        case "static":
            return StaticSource(listed)
        case "dns":
            return DnsSource(settings.names, settings.every)
        case "kubernetes":
            return KubernetesSource(cluster, settings.names, settings.port, settings.watch)

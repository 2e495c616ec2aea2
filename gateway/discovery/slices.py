"""Turns EndpointSlices into endpoints (https://kubernetes.io/docs/concepts/services-networking/endpoint-slices)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specdec.serving.discovery import Endpoint, Endpoints, join_address

Slice = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    """The entry of one pod in one slice."""

    uid: str
    ipv6: bool
    address: str
    ready: bool
    serving: bool
    terminating: bool


def endpoints_of(slices: Iterable[Slice], port: str) -> Endpoints:
    """The endpoints of all pods that serve, each pod once.

    A pod may be in several slices: in one for each address family, and in two while it moves between them. It counts
    as ready or as terminating when one slice says so, because no pod comes back from termination. Pods that are ready
    and not terminating take new sessions, pods that terminate and still serve are draining, and all others are left
    out.

    Args:
        slices: the EndpointSlices of all Services.
        port: the name of the port in the slices.
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


def _entries(each: Slice, port: str) -> Iterator[_Entry]:
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

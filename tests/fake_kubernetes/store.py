"""Objects with resource versions, and the log of their changes that watches read."""

import copy
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Object = dict[str, Any]
Kind = tuple[str, str, str]
"""API group, resource, namespace."""
Change = Literal["ADDED", "MODIFIED", "DELETED"]


class Refused(Exception):
    """A request the API server says no to, as its Status tells it."""

    def __init__(self, code: int, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    @property
    def status(self) -> Object:
        """The Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
        }


@dataclass(frozen=True)
class Event:
    """One change, as it was then."""

    version: int
    kind: Kind
    change: Change
    object: Object
    before: Object | None = None
    """The object before the change; None if it is new."""

    def told(self, selects: Callable[[Object], bool]) -> tuple[Change, Object] | None:
        """The change as it looks to a watch of what `selects` chooses; None where it does not show."""
        was = self.before is not None and selects(self.before)
        is_now = self.change != "DELETED" and selects(self.object)
        if is_now:
            return ("MODIFIED" if was else "ADDED"), self.object
        if was and self.before is not None:
            metadata = self.before["metadata"] | {"resourceVersion": str(self.version)}
            return "DELETED", self.before | {"metadata": metadata}
        return None


class Store:
    """Every write takes the next version; all under one lock, which watchers wait on."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 100
        self._objects: dict[tuple[Kind, str], Object] = {}
        self._log: list[Event] = []
        self._floor = 0

    def collection(self, kind: Kind) -> tuple[list[Object], int]:
        """All objects of a kind, and the version they are as of."""
        with self.changed:
            found = [copy.deepcopy(each) for (of, _), each in self._objects.items() if of == kind]
            return found, self.version

    def get(self, kind: Kind, name: str) -> Object:
        """One object.

        Raises:
            Refused: 404.
        """
        with self.changed:
            if (kind, name) not in self._objects:
                raise Refused(404, "NotFound", f'{kind[1]} "{name}" not found')
            return copy.deepcopy(self._objects[kind, name])

    def create(self, kind: Kind, each: Object) -> Object:
        """Add an object.

        Raises:
            Refused: 409, it exists.
        """
        name = each["metadata"]["name"]
        with self.changed:
            if (kind, name) in self._objects:
                raise Refused(409, "AlreadyExists", f'{kind[1]} "{name}" already exists')
            return self._write(kind, {**each, "metadata": {"uid": str(uuid.uuid4()), **each["metadata"]}}, "ADDED")

    def update(self, kind: Kind, name: str, change: Callable[[Object], Object]) -> Object:
        """Replace an object by what `change` makes of it; a version in the result must be the current one.

        Raises:
            Refused: 404, or 409 for a version that is over.
        """
        with self.changed:
            current = self.get(kind, name)
            version = current["metadata"]["resourceVersion"]
            made = change(copy.deepcopy(current))
            if made["metadata"].get("resourceVersion") not in (None, "", version):
                raise Refused(409, "Conflict", "the object has been modified; please apply your changes to the latest")
            made["metadata"]["resourceVersion"] = version
            return copy.deepcopy(current) if made == current else self._write(kind, made, "MODIFIED")

    def delete(self, kind: Kind, name: str) -> None:
        """Take an object away.

        Raises:
            Refused: 404.
        """
        with self.changed:
            self._write(kind, self.get(kind, name), "DELETED")

    def since(self, kind: Kind, version: int) -> list[Event]:
        """The changes after a version.

        Raises:
            Refused: 410, some of them are compacted away.
        """
        with self.changed:
            if version < self._floor:
                raise Refused(410, "Expired", f"too old resource version: {version} ({self._floor})")
            return [event for event in self._log if event.version > version and event.kind == kind]

    def compact(self) -> None:
        """Forget all changes so far."""
        with self.changed:
            self._floor, self._log = self.version, []

    def _write(self, kind: Kind, each: Object, change: Change) -> Object:
        self.version += 1
        kept = copy.deepcopy(each)
        kept["metadata"] |= {"resourceVersion": str(self.version), "namespace": kind[2]}
        before = self._objects.pop((kind, kept["metadata"]["name"]), None)
        if change != "DELETED":
            self._objects[kind, kept["metadata"]["name"]] = kept
        self._log.append(Event(self.version, kind, change, kept, before))
        self.changed.notify_all()
        return copy.deepcopy(kept)


def merge(into: Object, patch: Object) -> Object:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            old = into.get(key)
            into[key] = merge(old if isinstance(old, dict) else {}, value)
        else:
            into[key] = value
    return into

"""The Kubernetes API as plain HTTP, so that tests see a server's answers unchanged."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

Object = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"


class ApiRefused(Exception):
    """The server refused a request."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason = code, reason


class Api:
    """A client of one server with one user's token; used in a `with` block."""

    def __init__(self, url: str, token: str, authority: Path | None = None) -> None:
        verify = ssl.create_default_context(cafile=authority)
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx2.Client(base_url=url, headers=headers, verify=verify, timeout=20, trust_env=False)

    def ask(self, method: str, path: str, body: Object | None = None, **query: str) -> Object:
        """Send one request and return the answer; a PATCH is a merge patch.

        Raises:
            ApiRefused: by the Status in the answer.
        """
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body)
        answer = self._http.request(method, path, params=query, content=content, headers={"Content-Type": kind})
        said: Object = answer.json()
        if answer.is_error:
            raise ApiRefused(answer.status_code, said.get("reason", ""), said.get("message", ""))
        return said

    @contextmanager
    def watch(self, path: str, version: str, seconds: int, **query: str) -> Iterator[Iterator[Object]]:
        """Yield the events after a version, until the server ends the watch."""
        asked = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(seconds), **query}
        with self._http.stream("GET", path, params=asked) as answer:
            assert answer.status_code == httpx2.codes.OK
            yield (json.loads(line) for line in answer.iter_lines())

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()


@dataclass(frozen=True)
class Resource:
    """One namespaced kind of object."""

    version: str
    """Group and version, as in an object's `apiVersion`."""
    kind: str
    plural: str
    verbs: frozenset[str]

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of the collection, or of one object."""
        root = "apis" if "/" in self.version else "api"
        return f"/{root}/{self.version}/namespaces/{namespace}/{self.plural}" + (f"/{name}" if name else "")


def resources(api: Api) -> list[Resource]:
    """Return all namespaced resources that the server lists, in every version that it serves."""
    groups = api.ask("GET", "/apis")["groups"]
    versions = ["v1", *(version["groupVersion"] for group in groups for version in group["versions"])]
    return [resource for version in versions for resource in _of_version(api, version)]


def _of_version(api: Api, version: str) -> Iterator[Resource]:
    path = f"/apis/{version}" if "/" in version else f"/api/{version}"
    for each in api.ask("GET", path)["resources"]:
        if each["namespaced"]:
            yield Resource(version, each["kind"], each["name"], frozenset(each["verbs"]))

"""The HTTP face of the store, and the faults a test may ask for."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlparse

from tests.fake_kubernetes.access import Request, allowed, matches
from tests.fake_kubernetes.store import Kind, Object, Refused, Store, merge

_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?$"
)
_BOOKMARK_SECONDS = 0.2


class FakeKubernetes:
    """One API server; used in a `with` block."""

    def __init__(self, rules: Iterable[Mapping[str, Any]] | None = None) -> None:
        """`rules` are those of a Role; None allows everything."""
        self.store = Store()
        self.rules = None if rules is None else list(rules)
        self.requests: list[Request] = []
        self.down = False
        """Whether every request is answered 503."""
        self.drops = 0
        """How often the connections of all watches were cut."""
        self.swallows = 0
        """How often all watches fell silent."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def drop_watches(self) -> None:
        """Cut the connections of all watches."""
        with self.store.changed:
            self.drops += 1
            self.store.changed.notify_all()

    def swallow_watches(self) -> None:
        """Watches that are open become black holes: connected, and never another byte; those opened later are sound."""
        with self.store.changed:
            self.swallows += 1
            self.store.changed.notify_all()

    def kubeconfig(self) -> Object:
        """For any client."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": "test"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "test", "namespace": "ns"}}],
            "current-context": "fake",
        }

    def __enter__(self) -> "FakeKubernetes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.drop_watches()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeKubernetes
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Tests read no access log."""

    def _serve(self) -> None:
        try:
            self._answer_to()
        except Refused as refusal:
            self._reply(refusal.code, refusal.status)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of the base class

    def _answer_to(self) -> None:
        url = urlparse(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        body = self._body()
        if self.fake.down:
            raise Refused(503, "ServiceUnavailable", "the API server is down")
        found = _PATH.match(url.path)
        if found is None:
            raise Refused(404, "NotFound", url.path)
        kind = (found["group"] or "", found["resource"], found["namespace"])
        name, sub = found["name"] or "", found["sub"] or ""
        verb = _verb(self.command, name, query)
        self._check(Request(verb, kind[0], kind[1] + (f"/{sub}" if sub else ""), name))
        if verb == "watch":
            self._watch(kind, query)
        elif verb == "list":
            self._list(kind, query)
        else:
            self._reply(201 if verb == "create" else 200, self._change(verb, kind, name, sub, body))

    def _check(self, request: Request) -> None:
        self.fake.requests.append(request)
        if self.fake.rules is not None and not allowed(self.fake.rules, request):
            raise Refused(403, "Forbidden", f"cannot {request.verb} {request.resource} {request.name}")

    def _list(self, kind: Kind, query: Mapping[str, str]) -> None:
        items, version = self.fake.store.collection(kind)
        chosen = [each for each in items if _selected(each, query)]
        self._reply(200, {"kind": "List", "metadata": {"resourceVersion": str(version)}, "items": chosen})

    def _change(self, verb: str, kind: Kind, name: str, sub: str, body: Object) -> Object:
        store = self.fake.store
        if sub == "scale":
            return _scale(store, verb, kind, name, body)
        match verb:
            case "get":
                return store.get(kind, name)
            case "create":
                return store.create(kind, body)
            case "update":
                return store.update(kind, name, lambda _: body)
            case "patch":
                return store.update(kind, name, lambda current: merge(current, body))
            case _:
                store.delete(kind, name)
                return {"kind": "Status", "status": "Success"}

    def _watch(self, kind: Kind, query: Mapping[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        drops, swallows = self.fake.drops, self.fake.swallows
        version = int(query["resourceVersion"])
        end = time.monotonic() + float(query.get("timeoutSeconds", 3600))
        bookmarked = time.monotonic() if _is_true(query, "allowWatchBookmarks") else end
        try:
            while time.monotonic() < end:
                if self.fake.swallows != swallows:
                    self.fake.closing.wait()
                    return
                if self.fake.drops != drops:
                    self._cut()
                    return
                version = self._tell(kind, query, version)
                if time.monotonic() - bookmarked > _BOOKMARK_SECONDS:
                    bookmarked = time.monotonic()
                    self._event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})
                self._wait(version, drops)
        except Refused as refusal:
            self._event("ERROR", refusal.status)
        self.wfile.write(b"0\r\n\r\n")

    def _tell(self, kind: Kind, query: Mapping[str, str], version: int) -> int:
        with self.fake.store.changed:
            events, now = self.fake.store.since(kind, version), self.fake.store.version
        for event in events:
            if told := event.told(lambda each: _selected(each, query)):
                self._event(*told)
        return now

    def _wait(self, version: int, drops: int) -> None:
        with self.fake.store.changed:
            if self.fake.store.version == version and self.fake.drops == drops:
                self.fake.store.changed.wait(0.05)

    def _event(self, kind: str, each: Object) -> None:
        line = json.dumps({"type": kind, "object": each}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _body(self) -> Object:
        length = int(self.headers.get("Content-Length") or 0)
        return cast("Object", json.loads(self.rfile.read(length))) if length else {}

    def _reply(self, code: int, answer: Object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method == "GET" and not name:
        return "watch" if _is_true(query, "watch") else "list"
    return {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]


def _is_true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in {"1", "true"}


def _selected(each: Object, query: Mapping[str, str]) -> bool:
    return matches(query.get("labelSelector", ""), each["metadata"].get("labels", {}))


def _scale(store: Store, verb: str, kind: Kind, name: str, body: Object) -> Object:
    """Read or write the scale subresource: the replicas of its object, without annotations."""

    def rescaled(current: Object) -> Object:
        current["metadata"]["resourceVersion"] = body.get("metadata", {}).get("resourceVersion")
        current["spec"]["replicas"] = body["spec"]["replicas"]
        return current

    scaled = store.get(kind, name) if verb == "get" else store.update(kind, name, rescaled)
    replicas = scaled["spec"]["replicas"]
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: scaled["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")},
        "spec": {"replicas": replicas},
        "status": {"replicas": scaled.get("status", {}).get("replicas", replicas)},
    }

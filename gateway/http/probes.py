"""Liveness, readiness, version and metrics for probes and Prometheus, with the API or at a separate address."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client.exposition import choose_encoder

from gateway import health
from gateway.http.openapi import add_head
from gateway.turns.services import Services
from specdec.serving.version import package_version

_JSON = ("/livez", "/readyz", "/version")
_READINESS = ("/readyz", "/health", "/ping")
_NOT_READY: dict[int | str, dict[str, str]] = {503: {"description": "Something needed is missing"}}


def admin(services: Services) -> FastAPI:
    """Return the application of the admin address: probes and metrics with all details."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    mount(app, services, in_full=True)
    return app


def mount(app: FastAPI, services: Services, *, in_full: bool) -> None:
    """Add the routes. Unless `in_full`, readiness omits the verifiers, and there are no metrics."""
    probes = _Probes(services)
    routes: dict[str, Callable[..., Awaitable[Response]]] = {
        "/livez": probes.livez,
        "/readyz": probes.readyz if in_full else probes.is_ready,
        "/health": probes.health,
        "/ping": probes.health,
        "/version": probes.version,
    }
    if in_full:
        routes["/metrics"] = probes.metrics
    for path, endpoint in routes.items():
        kind = JSONResponse if path in _JSON else Response
        app.add_api_route(
            path, endpoint, methods=["GET"], response_class=kind, responses=_NOT_READY if path in _READINESS else {}
        )
        add_head(app, path, endpoint)
    app.add_api_route("/ping", probes.health, methods=["POST"], include_in_schema=False)


class _Probes:
    """Endpoints of the probes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def livez(self) -> Response:
        """Answers as long as the process runs."""
        return JSONResponse({"status": "ok"})

    async def is_ready(self) -> Response:
        """Whether a request would be served."""
        return _readiness(await health.missing(self._services), {})

    async def health(self) -> Response:
        """Whether a request would be served, as vLLM says it: by the status alone."""
        return Response(status_code=503 if await health.missing(self._services) else 200)

    async def version(self) -> Response:
        """The version of the gateway."""
        return JSONResponse({"version": package_version()})

    async def readyz(self) -> Response:
        """Whether a request would be served, and what is missing if not."""
        missing = await health.missing(self._services)
        return _readiness(missing, {"missing": missing, "verifiers": self._services.models.states})

    async def metrics(self, request: Request) -> Response:
        """The metrics, as Prometheus reads them."""
        # Update the session store's gauge, even if no probe asks for readiness.
        await health.missing(self._services)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._services.metrics.registry), headers={"content-type": content_type})


def _readiness(missing: list[str], details: dict[str, object]) -> Response:
    status = "not ready" if missing else "ready"
    return JSONResponse({"status": status, **details}, status_code=503 if missing else 200)

"""Assembles the parts of the controller and runs them until the process is stopped."""

import asyncio
import socket
import uuid
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial

import structlog

from gateway.discovery.cluster import connect
from gateway.ratio_controller.config import MetricsSettings, RatioSettings
from gateway.ratio_controller.controller import Controller, ControllerMetrics, DeploymentScale
from gateway.ratio_controller.lease import Leadership
from specdec.serving.discovery import resolve
from specdec.serving.telemetry.metrics import serve_metrics
from specdec.serving.telemetry.readers import Prometheus, Scraper
from specdec.serving.telemetry.registry import process_registry
from specdec.serving.telemetry.scrapes import MetricsUnreadable
from specdec.serving.telemetry.snapshot import MetricsSnapshot

_log = structlog.get_logger()


async def serve(settings: RatioSettings, stop: asyncio.Event) -> None:
    """Run the controller until `stop` is set, then release the Lease.

    Raises:
        ConfigError: the address of /metrics is taken, or there are no credentials for the cluster.
    """
    metrics = ControllerMetrics(process_registry("ratio-controller"))
    namespace = settings.cluster.chosen_namespace
    async with connect(settings.cluster) as api:
        identity = f"{socket.gethostname()}/{uuid.uuid4().hex}"
        drafters = DeploymentScale(api, namespace, settings.deployment)
        place = (namespace, settings.lease.name)
        leadership = Leadership(api, place, identity, settings.lease.duration, owner=drafters.owner)
        controller = Controller(settings, (leadership, drafters, snapshot_reader(settings.metrics)), metrics)
        with closing(serve_metrics(settings.http, metrics.registry, lambda: controller.reconciled)) as http:
            _log.info("controlling", deployment=settings.deployment, http=http.address, dry_run=settings.dry_run)
            task = asyncio.create_task(controller.run())
            await stop.wait()
            task.cancel()
            await asyncio.wait([task])
            with suppress(Exception):  # it expires by itself
                async with asyncio.timeout(settings.cluster.timeout):
                    await leadership.release()


def snapshot_reader(settings: MetricsSettings) -> Callable[[], Awaitable[MetricsSnapshot]]:
    """Return a function that reads the metrics, from Prometheus if configured and otherwise from the replicas."""
    if settings.prometheus:
        headers = partial(_headers, settings)
        source = Prometheus(settings.prometheus, settings.window, settings.matchers, settings.timeout, headers)
        return lambda: asyncio.to_thread(source.read)
    scraper = Scraper(settings.timeout)

    async def scrape() -> MetricsSnapshot:
        replicas = await resolve((*settings.verifiers, *settings.drafters))
        return await asyncio.to_thread(scraper.read, [f"http://{each.address}/metrics" for each in replicas])

    return scrape


def _headers(settings: MetricsSettings) -> dict[str, str]:
    """Return the headers of a Prometheus query.

    Raises:
        MetricsUnreadable: the file of the token cannot be read.
    """
    if settings.token_file is None:
        return settings.headers
    try:
        token = settings.token_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise MetricsUnreadable(f"metrics.token_file {settings.token_file}: {error.strerror}") from error
    return settings.headers | {"Authorization": f"Bearer {token}"}

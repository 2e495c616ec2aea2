"""The one place that joins the controller's parts, and the life of the process."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

import structlog
from prometheus_client import CollectorRegistry

from gateway.discovery.cluster import connect
from gateway.ratio_controller.config import MetricsSettings, RatioSettings
from gateway.ratio_controller.controller import Controller
from gateway.ratio_controller.lease import Leadership
from gateway.ratio_controller.metrics import ControllerMetrics
from gateway.ratio_controller.scale import DeploymentScale
from gateway.request import new_id
from specdec.serving.discovery import resolve
from specdec.serving.metrics import serve_metrics
from specdec.serving.prometheus import Prometheus
from specdec.serving.readings import Reading
from specdec.serving.scraper import Scraper

_log = structlog.get_logger()


async def serve(settings: RatioSettings, stop: asyncio.Event) -> None:
    """Control until `stop` is set, then give the Lease back.

    Raises:
        ConfigError: the metrics' address is taken, or there are no credentials for the cluster.
    """
    metrics = ControllerMetrics(CollectorRegistry())
    namespace = settings.cluster.chosen_namespace
    async with connect(settings.cluster) as api:
        identity = f"{socket.gethostname()}/{new_id()}"
        lead = Leadership(api, (namespace, settings.lease.name), identity, settings.lease.duration)
        drafters = DeploymentScale(api, namespace, settings.deployment)
        controller = Controller(settings, (lead, drafters, reader_of(settings.metrics)), metrics)
        with closing(serve_metrics(settings.http, metrics.registry, lambda: controller.looked)) as http:
            _log.info("controlling", deployment=settings.deployment, http=http.address, dry_run=settings.dry_run)
            task = asyncio.create_task(controller.run())
            await stop.wait()
            task.cancel()
            await asyncio.wait([task])
            with suppress(Exception):  # it runs out by itself
                async with asyncio.timeout(settings.cluster.timeout):
                    await lead.give_back()


def reader_of(settings: MetricsSettings) -> Callable[[], Awaitable[Reading]]:
    """What gives the live numbers."""
    if settings.prometheus:
        source = Prometheus(settings.prometheus, settings.window, settings.matchers, settings.timeout)
        return lambda: asyncio.to_thread(source.read)
    scraper = Scraper(settings.timeout)

    async def scrape() -> Reading:
        replicas = await resolve((*settings.verifiers, *settings.drafters))
        return await asyncio.to_thread(scraper.read, [f"http://{each.address}/metrics" for each in replicas])

    return scrape

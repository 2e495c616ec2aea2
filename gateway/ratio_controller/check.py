"""The controller's own checks: whether metrics and cluster answer, and allow what it needs."""

from collections.abc import Callable

from gateway.discovery.cluster import connect
from gateway.ratio_controller.app import snapshot_reader
from gateway.ratio_controller.config import RatioSettings
from gateway.ratio_controller.controller import DeploymentScale
from specdec.errors import ConfigError, SpecdecError
from specdec.serving.checks import Check, port_check, write_checks


async def check(settings: RatioSettings, write: Callable[[str], object]) -> bool:
    """Write each check as a line of JSON; False when one has failed."""
    return write_checks([await _metrics(settings), await _scale(settings), port_check("http", settings.http)], write)


async def _metrics(settings: RatioSettings) -> Check:
    try:
        snapshot = await snapshot_reader(settings.metrics)()
    except (SpecdecError, OSError) as error:
        return Check.warn("metrics", str(error), "start the services, or set metrics to where their numbers are")
    return Check.ok("metrics", f"{snapshot.verifiers} verifiers and {snapshot.drafters} drafters answer")


async def _scale(settings: RatioSettings) -> Check:
    name = f"deployment {settings.deployment}"
    try:
        async with connect(settings.cluster) as api:
            scale = await DeploymentScale(api, settings.cluster.chosen_namespace, settings.deployment).read()
    except ConfigError as error:
        return Check.fail(name, error.message, "run in a pod, or set cluster")
    except Exception as error:  # noqa: BLE001 - every error of the client means the same here
        detail = f"its scale cannot be read: {type(error).__name__}"
        return Check.fail(name, detail, "allow get and patch on deployments/scale, and see that it exists")
    return Check.ok(name, f"{scale.replicas} replicas")

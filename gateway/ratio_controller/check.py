"""What a look over the controller's configuration finds: do metrics and cluster answer, and allow what is needed."""

from collections.abc import Callable

from gateway.discovery.cluster import connect
from gateway.ratio_controller.app import reader_of
from gateway.ratio_controller.config import RatioSettings
from gateway.ratio_controller.scale import DeploymentScale
from specdec.errors import ConfigError, SpecdecError
from specdec.serving.checks import Line, port_line, write_lines


async def check(settings: RatioSettings, write: Callable[[str], object]) -> bool:
    """Write one JSON object a line for each thing looked at; False when something must be mended."""
    return write_lines([await _metrics(settings), await _scale(settings), port_line("http", settings.http)], write)


async def _metrics(settings: RatioSettings) -> Line:
    try:
        reading = await reader_of(settings.metrics)()
    except (SpecdecError, OSError) as error:
        return Line("metrics", "warn", str(error), "start the services, or set metrics to where their numbers are")
    return Line("metrics", "ok", f"{reading.verifiers} verifiers and {reading.drafters} drafters answer")


async def _scale(settings: RatioSettings) -> Line:
    name = f"deployment {settings.deployment}"
    try:
        async with connect(settings.cluster) as api:
            scale = await DeploymentScale(api, settings.cluster.chosen_namespace, settings.deployment).read()
    except ConfigError as error:
        return Line(name, "fail", error.message, "run in a pod, or set cluster")
    except Exception as error:  # noqa: BLE001 - the client has many, and each is the same to who reads this
        detail = f"its scale cannot be read: {type(error).__name__}"
        return Line(name, "fail", detail, "allow get and patch on deployments/scale, and see that it exists")
    return Line(name, "ok", f"{scale.replicas} replicas")

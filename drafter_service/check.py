"""The drafter's checks in `specdec doctor`: the model loads and drafts, and the ports are free."""

from collections.abc import Callable

from drafter_service.app import load_drafter
from drafter_service.config import DrafterSettings
from specdec.errors import ConfigError
from specdec.serving.checks import Check, port_check, write_checks


async def check(settings: DrafterSettings, write: Callable[[str], object]) -> bool:
    """Write the result of each check as one line of JSON. Return False if a check fails."""
    lines = [*_model(settings), port_check("http", settings.http), port_check("address", settings.address)]
    return write_checks(lines, write)


def _model(settings: DrafterSettings) -> list[Check]:
    try:
        info = load_drafter(settings).info
    except ConfigError as error:
        return [Check.fail("model", error.message, "set model.path to the folder of a model it can serve")]
    step = f"{info.step_seconds * 1000:.1f} ms a step"
    return [
        Check.ok("model", f"{settings.model.path} loads, context {info.context_length}, {step}"),
        Check.ok("tokenizer", f"{info.vocab_size} ids, fingerprint {info.tokenizer_hash}"),
    ]

"""The drafter's part of `specdec doctor`: whether its model loads and drafts, and whether its ports are free."""

from collections.abc import Callable

from drafter_service.app import load_drafter
from drafter_service.config import DrafterSettings
from specdec.errors import ConfigError
from specdec.serving.checks import Line, port_line, write_lines


def check(settings: DrafterSettings, write: Callable[[str], object]) -> bool:
    """Write the result of each check as one line of JSON; returns False when a check failed."""
    lines = [*_model(settings), port_line("http", settings.http), port_line("address", settings.address)]
    return write_lines(lines, write)


def _model(settings: DrafterSettings) -> list[Line]:
    try:
        info = load_drafter(settings).info
    except ConfigError as error:
        return [Line("model", "fail", error.message, "set model.path to the folder of a model it can serve")]
    step = f"{info.step_seconds * 1000:.1f} ms a step"
    return [
        Line("model", "ok", f"{settings.model.path} loads, context {info.context_length}, {step}"),
        Line("tokenizer", "ok", f"{info.vocab_size} ids, fingerprint {info.tokenizer_hash}"),
    ]

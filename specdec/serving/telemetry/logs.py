"""Structured logs: one event per line, with the ids of its request."""

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from specdec.errors import shortened
from specdec.serving.settings import LogSettings

VALUE_BYTES = 16 * 1024
"""Maximum length of one value of an event, in bytes of UTF-8. A traceback is one value."""


def configure(service: str, settings: LogSettings) -> None:
    """Configure structlog and the standard library's loggers for this process. Events go to stderr."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        cut_values,
    ]
    renderer = _renderer(settings.form)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.level.upper())
    logging.captureWarnings(True)  # otherwise warnings bypass the handler
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)


def cut_values(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Cut every text of an event to VALUE_BYTES, because it may repeat a caller's input."""
    return {key: shortened(value, VALUE_BYTES) if isinstance(value, str) else value for key, value in event.items()}


def _renderer(form: str) -> Processor:
    if form == "console":
        return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    return structlog.processors.JSONRenderer()

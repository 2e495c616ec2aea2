"""Detection of environment variables that look like settings but are not."""

import difflib
import os
import re
from collections.abc import Collection, Mapping

from specdec.errors import ConfigError

_BEGINNING = "SPECDEC_"
_PROCESSES = ("UP", "DRAFTER", "VERIFIER", "GATEWAY", "RATIO", "CERTIFICATES")
"""Second part of the names of each process's settings."""
_OTHERS = ("SPECDEC_ADDRESS", "SPECDEC_API_KEY", "SPECDEC_CA", "SPECDEC_DEBUG", "SPECDEC_MODELS", "SPECDEC_TOKEN")
"""Variables that are not settings of a process."""
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_[0-9]+_(TCP|UDP)(_\w+)?)?$")
"""Suffixes of the variables that Kubernetes creates for Services."""


def check_environment(environment: Mapping[str, str], prefix: str, settings: Collection[str]) -> None:
    """Raise ConfigError for a variable with a misspelt name.

    A variable with this process's prefix must name a setting; names inside a group of settings are checked with its
    values. Another variable may belong to other software, so it is rejected only if it resembles a prefix of ours.

    Args:
        prefix: prefix of this process's settings, such as `SPECDEC_GATEWAY_`.
    """
    known = [prefix + name.upper() for name in settings]
    for name in map(str.upper, environment):
        if not name.startswith(_BEGINNING) or name in _OTHERS or _OF_KUBERNETES.search(name):
            continue
        if name.startswith(prefix):
            if name.partition("__")[0] not in known:
                raise ConfigError(f"{name}: unknown variable{_guess(name, known)}")
            continue
        rest = name.removeprefix(_BEGINNING)
        process = rest.partition("_")[0]
        others = [each.removeprefix(_BEGINNING) for each in _OTHERS]
        if process not in _PROCESSES and (_close(process, _PROCESSES) or _close(rest, others)):
            meant = [_BEGINNING + each + rest.removeprefix(process) for each in _PROCESSES]
            raise ConfigError(f"{name}: unknown variable{_guess(name, [*meant, *_OTHERS])}")


def otlp_endpoint() -> str:
    """Return the trace endpoint in OpenTelemetry's own variables; empty if unset or if the SDK is disabled."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next(filter(None, map(os.environ.get, names)), "")


def _close(word: str, words: Collection[str]) -> list[str]:
    return difflib.get_close_matches(word, words, n=1, cutoff=0.75)


def _guess(name: str, known: Collection[str]) -> str:
    close = _close(name, known)
    return f", did you mean {close[0]}?" if close else ""

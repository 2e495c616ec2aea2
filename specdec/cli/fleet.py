"""The processes of a fleet, read periodically from their metrics."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError
from specdec.serving.telemetry.scrapes import ScrapedProcess, Scrapes

_TIMEOUT = 2.0
_ROLES = {
    "gateway": "specdec_gateway_requests_running",
    "verifier": "specdec_spec_rounds_total",
    "drafter": "specdec_drafter_streams",
}
"""A series that identifies each role: only its processes have it."""


@dataclass(frozen=True, slots=True)
class Look:
    """The metrics of all processes at one moment."""

    processes: tuple[ScrapedProcess, ...]
    silent: tuple[str, ...]
    """URLs without a valid answer from a process of the fleet."""

    def of(self, role: str) -> list[ScrapedProcess]:
        """The processes of a role."""
        return [each for each in self.processes if _role(each) == role]


class Fleet:
    """Reads the metrics of processes at URLs that end in /metrics."""

    def __init__(self, urls: Sequence[str], key: str = "") -> None:
        """`key` is an API key that gateways may require; it is sent to every URL; empty for none."""
        self._urls = tuple(dict.fromkeys(urls))
        self._scrapes = Scrapes(_TIMEOUT, {"authorization": f"Bearer {key}"} if key else {}, direct=True)

    def look(self) -> Look:
        """Read all processes once."""
        found = {each.url: each for each in self._scrapes.look(self._urls) if _role(each)}
        return Look(tuple(found.values()), tuple(url for url in self._urls if url not in found))


def _role(process: ScrapedProcess) -> str:
    """Role of a process; empty if it is not part of a fleet."""
    return next((role for role, name in _ROLES.items() if process.now.values(name)), "")


def urls_of(given: Sequence[str], state: Path | None) -> list[str]:
    """URLs to read: those given, and those of a state file; without either, the defaults of `specdec up`.

    Raises:
        ConfigError: a URL does not end in /metrics, or the file was not written by `specdec up --state`.
    """
    for url in given:
        if not url.startswith(("http://", "https://")) or not url.endswith("/metrics"):
            raise ConfigError(f"--from {url}: give the URL of a process, as http://127.0.0.1:8000/metrics")
    settings = UpSettings()
    defaults = [settings.http, settings.verifier_metrics, settings.drafter_metrics]
    addresses = _listed(state) if state else ([] if given else defaults)
    return [*given, *(f"http://{address}/metrics" for address in addresses)]


def _listed(state: Path) -> list[str]:
    try:
        return [str(entry["http"]) for entry in json.loads(state.read_text()) if entry["http"]]
    except OSError as error:
        raise ConfigError(f"--state {state}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--state {state}: not a file that `specdec up --state` writes") from error

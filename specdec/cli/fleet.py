"""The processes of a fleet as their own metrics describe them, from one look to the next."""

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
"""A series that every process of a role has, and no other."""


@dataclass(frozen=True, slots=True)
class Look:
    """All processes at one moment."""

    processes: tuple[ScrapedProcess, ...]
    silent: tuple[str, ...]
    """URLs that did not answer as a process of a fleet does."""

    def of(self, role: str) -> list[ScrapedProcess]:
        """The processes of a role."""
        return [each for each in self.processes if _role(each) == role]


class Fleet:
    """Reads the metrics of processes at URLs that end in /metrics."""

    def __init__(self, urls: Sequence[str], key: str = "") -> None:
        """`key` is an API key that gateways may ask for; it is sent to every URL, and is empty for none."""
        self._urls = tuple(dict.fromkeys(urls))
        self._scrapes = Scrapes(_TIMEOUT, {"authorization": f"Bearer {key}"} if key else {}, direct=True)

    def look(self) -> Look:
        """Read all processes once."""
        found = {each.url: each for each in self._scrapes.look(self._urls) if _role(each)}
        return Look(tuple(found.values()), tuple(url for url in self._urls if url not in found))


def _role(process: ScrapedProcess) -> str:
    """What a process is; empty for one that is no part of a fleet."""
    return next((role for role, name in _ROLES.items() if process.now.values(name)), "")


def urls_of(given: Sequence[str], state: Path | None) -> list[str]:
    """Where to read: the URLs given, and the processes of a state file; without either, what `specdec up` runs.

    Raises:
        ConfigError: a URL does not end in /metrics, or the file is not one of `specdec up --state`.
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

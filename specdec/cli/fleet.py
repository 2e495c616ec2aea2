"""The processes of a fleet as their own metrics describe them, from one look to the next."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError

_TIMEOUT = 2.0
_ROLES = {
    "gateway": "specdec_gateway_requests_running",
    "verifier": "specdec_spec_rounds_total",
    "drafter": "specdec_drafter_streams",
}
"""A series that every process of a role has, and no other."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The metrics of a process at one moment."""

    at: float
    samples: tuple[Sample, ...]

    @property
    def role(self) -> str:
        """What the process is; empty for one that is no part of a fleet."""
        names = {sample.name for sample in self.samples}
        return next((role for role, name in _ROLES.items() if name in names), "")

    def total(self, name: str, **labels: str) -> float:
        """The sum of a series over all samples that have these labels."""
        return sum(each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items())


@dataclass(frozen=True, slots=True)
class FleetProcess:
    """One process, as the last two looks show it."""

    url: str
    now: Scrape
    before: Scrape | None = None

    def gauge(self, name: str, **labels: str) -> float:
        """A value as it is now."""
        return self.now.total(name, **labels)

    def grown(self, name: str, **labels: str) -> float:
        """How much a counter has grown since the look before; since the start, where it began anew or was not seen."""
        value = self.now.total(name, **labels)
        earlier = self.before.total(name, **labels) if self.before else 0.0
        return value - earlier if value >= earlier else value

    def rate(self, name: str, **labels: str) -> float | None:
        """The same in a second; None at the first look."""
        return self.grown(name, **labels) / (self.now.at - self.before.at) if self.before else None

    def mean(self, name: str) -> float | None:
        """The mean of a histogram since the look before; None without a value."""
        count = self.grown(f"{name}_count")
        return self.grown(f"{name}_sum") / count if count else None


@dataclass(frozen=True, slots=True)
class Look:
    """All processes at one moment."""

    processes: tuple[FleetProcess, ...]
    silent: tuple[str, ...]
    """URLs that did not answer as a process of a fleet does."""

    def of(self, role: str) -> list[FleetProcess]:
        """The processes of a role."""
        return [each for each in self.processes if each.now.role == role]


class Fleet:
    """Reads the metrics of processes at URLs that end in /metrics."""

    def __init__(self, urls: Sequence[str], key: str = "") -> None:
        """`key` is an API key that gateways may ask for; it is sent to every URL, and is empty for none."""
        self._urls = tuple(dict.fromkeys(urls))
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._before: dict[str, Scrape] = {}

    def look(self) -> Look:
        """Read all processes once."""
        with ThreadPoolExecutor(max_workers=16) as threads:
            answers = dict(zip(self._urls, threads.map(self._scrape, self._urls), strict=True))
        found = {url: scrape for url, scrape in answers.items() if scrape is not None and scrape.role}
        before, self._before = self._before, found
        processes = tuple(FleetProcess(url, scrape, before.get(url)) for url, scrape in found.items())
        return Look(processes, tuple(url for url in self._urls if url not in found))

    def _scrape(self, url: str) -> Scrape | None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(urllib.request.Request(url, headers=self._headers), timeout=_TIMEOUT) as answer:
                return scraped(answer.read().decode(), time.monotonic())
        except (OSError, urllib.error.URLError, ValueError):
            return None


def scraped(text: str, at: float) -> Scrape:
    """The metrics in a text that Prometheus could read; raises ValueError for any other."""
    families = text_string_to_metric_families(text)
    return Scrape(at, tuple(sample for family in families for sample in family.samples))


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

"""Metrics of processes, scraped repeatedly from /metrics."""

import time
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specdec.errors import SpecdecError


class MetricsUnreadable(SpecdecError, reason="METRICS_UNREADABLE"):
    """The metrics cannot be read."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Metrics of a process at one moment."""

    at: float
    samples: tuple[Sample, ...]

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values of a series, over all samples with these labels."""
        return [each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items()]


@dataclass(frozen=True, slots=True)
class ScrapedProcess:
    """One process in the last two scrapes."""

    url: str
    now: Scrape
    before: Scrape | None = None

    def gauge(self, name: str, **labels: str) -> float:
        """Return the current value, summed over all samples."""
        return sum(self.now.values(name, **labels))

    def grown(self, name: str, **labels: str) -> float:
        """Return the increase of a counter since the previous scrape, or since its start if it was reset or is new."""
        value = self.gauge(name, **labels)
        earlier = sum(self.before.values(name, **labels)) if self.before else 0.0
        return value - earlier if value >= earlier else value

    def rate(self, name: str, **labels: str) -> float | None:
        """Return the increase per second; None on the first scrape."""
        return self.grown(name, **labels) / (self.now.at - self.before.at) if self.before else None

    def mean(self, name: str) -> float | None:
        """Return the mean of a histogram since the previous scrape; None without observations."""
        count = self.grown(f"{name}_count")
        return self.grown(f"{name}_sum") / count if count else None


class Scrapes:
    """Scrapes the metrics of processes repeatedly."""

    def __init__(self, timeout: float, headers: Mapping[str, str] | None = None, *, direct: bool = False) -> None:
        """Create a scraper.

        Args:
            timeout: timeout of a response, in seconds.
            headers: headers of each request.
            direct: whether to bypass the environment's proxies.
        """
        self._timeout = timeout
        self._headers = headers
        self._direct = direct
        self._before: dict[str, Scrape] = {}

    def look(self, urls: Iterable[str]) -> list[ScrapedProcess]:
        """Scrape the URLs. Return the processes that respond, in the order of the URLs."""
        asked = list(dict.fromkeys(urls))
        with ThreadPoolExecutor(max_workers=16) as threads:
            answers = zip(asked, threads.map(self._scrape, asked), strict=True)
            heard = {url: scrape for url, scrape in answers if scrape is not None}
        before, self._before = self._before, heard
        return [ScrapedProcess(url, scrape, before.get(url)) for url, scrape in heard.items()]

    def _scrape(self, url: str) -> Scrape | None:
        try:
            text = fetch(url, self._timeout, self._headers, direct=self._direct).decode()
            return scraped(text, time.monotonic())
        except (MetricsUnreadable, ValueError):
            return None


def scraped(text: str, at: float) -> Scrape:
    """Parse a text in Prometheus format; raise ValueError for any other text."""
    families = text_string_to_metric_families(text)
    return Scrape(at, tuple(sample for family in families for sample in family.samples))


def fetch(url: str, timeout: float, headers: Mapping[str, str] | None = None, *, direct: bool = False) -> bytes:
    """Return the body of the response to a GET request. With `direct`, bypass the environment's proxies.

    Raises:
        MetricsUnreadable: the URL does not respond.
    """
    proxies = [urllib.request.ProxyHandler({})] if direct else []
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.build_opener(*proxies).open(request, timeout=timeout) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, ValueError) as error:
        raise MetricsUnreadable(f"{url} cannot be read: {error}") from error

"""The metrics of processes as they publish them at /metrics, from one look to the next."""

import time
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from specdec.errors import SpecdecError


class MetricsUnreadable(SpecdecError, reason="METRICS_UNREADABLE"):
    """Metrics cannot be read."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The metrics of a process at one moment."""

    at: float
    samples: tuple[Sample, ...]

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of a series, of all samples that have these labels."""
        return [each.value for each in self.samples if each.name == name and labels.items() <= each.labels.items()]


@dataclass(frozen=True, slots=True)
class ScrapedProcess:
    """One process, as the last two looks show it."""

    url: str
    now: Scrape
    before: Scrape | None = None

    def gauge(self, name: str, **labels: str) -> float:
        """A value as it is now, the sum of all samples."""
        return sum(self.now.values(name, **labels))

    def grown(self, name: str, **labels: str) -> float:
        """How much a counter has grown since the look before; since the start, where it began anew or was not seen."""
        value = self.gauge(name, **labels)
        earlier = sum(self.before.values(name, **labels)) if self.before else 0.0
        return value - earlier if value >= earlier else value

    def rate(self, name: str, **labels: str) -> float | None:
        """The same in a second; None at the first look."""
        return self.grown(name, **labels) / (self.now.at - self.before.at) if self.before else None

    def mean(self, name: str) -> float | None:
        """The mean of a histogram since the look before; None without a value."""
        count = self.grown(f"{name}_count")
        return self.grown(f"{name}_sum") / count if count else None


class Scrapes:
    """Reads the metrics of processes, again and again."""

    def __init__(self, timeout: float, headers: Mapping[str, str] | None = None, *, direct: bool = False) -> None:
        """Make a reader.

        Args:
            timeout: seconds for which an answer may take.
            headers: of each request.
            direct: whether to pass the environment's proxies by.
        """
        self._timeout = timeout
        self._headers = headers
        self._direct = direct
        self._before: dict[str, Scrape] = {}

    def look(self, urls: Iterable[str]) -> list[ScrapedProcess]:
        """The processes that answer, in the order of their URLs."""
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
    """The metrics in a text that Prometheus could read; raises ValueError for any other."""
    families = text_string_to_metric_families(text)
    return Scrape(at, tuple(sample for family in families for sample in family.samples))


def fetch(url: str, timeout: float, headers: Mapping[str, str] | None = None, *, direct: bool = False) -> bytes:
    """The body of the answer to a GET request, past the environment's proxies where it is `direct`.

    Raises:
        MetricsUnreadable: the URL does not answer.
    """
    proxies = [urllib.request.ProxyHandler({})] if direct else []
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.build_opener(*proxies).open(request, timeout=timeout) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, ValueError) as error:
        raise MetricsUnreadable(f"{url} cannot be read: {error}") from error

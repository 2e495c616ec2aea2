"""Reads metrics snapshots: from a Prometheus that scrapes every replica, or from the /metrics of each replica."""

import json
import time
import urllib.parse
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from specdec.errors import SpecdecError
from specdec.serving.metrics_snapshot import COUNTERS, DRAFTER, GAUGES, VERIFIER, MetricsSnapshot, snapshot_of


class MetricsUnreadable(SpecdecError, reason="METRICS_UNREADABLE"):
    """Metrics cannot be read."""


class Prometheus:
    """Reads the sums of the last `window` seconds."""

    def __init__(
        self,
        url: str,
        window: int = 300,
        matchers: str = "",
        timeout: float = 5.0,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Make a reader.

        Args:
            url: base URL of the Prometheus.
            window: seconds over which counters are summed.
            matchers: label matchers that narrow the series, such as `namespace="a"`.
            timeout: seconds for which an answer may take.
            headers: returns the headers of a query, which may change.
        """
        self._url = url.rstrip("/")
        self._window = window
        self._matchers = matchers
        self._timeout = timeout
        self._headers = headers

    def read(self) -> MetricsSnapshot:
        """The numbers of all replicas.

        Raises:
            MetricsUnreadable: it does not answer, or the answer is not one of Prometheus.
        """
        counters = {name: self._query(f"sum(increase({self._series(name)}[{self._window}s]))") for name in COUNTERS}
        gauges = {name: self._query(f"avg({self._series(name)} > 0)") for name in GAUGES}
        return snapshot_of(
            {name: value for name, value in counters.items() if value is not None},
            {name: value for name, value in gauges.items() if value is not None},
            verifiers=round(self._query(f"count({self._series(VERIFIER)})") or 0),
            drafters=round(self._query(f"count({self._series(DRAFTER)})") or 0),
            seconds=float(self._window),
        )

    def _series(self, name: str) -> str:
        metric, _, labels = name.rstrip("}").partition("{")
        inside = ",".join(part for part in (labels, self._matchers) if part)
        return f"{metric}{{{inside}}}" if inside else metric

    def _query(self, query: str) -> float | None:
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        answer = _fetch(url, self._timeout, self._headers())
        try:
            found = json.loads(answer)["data"]["result"]
            return float(found[0]["value"][1]) if found else None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise MetricsUnreadable(f"{self._url} does not answer as Prometheus does") from error


@dataclass(frozen=True, slots=True)
class _Scrape:
    at: float
    values: Mapping[str, float]


class Scraper:
    """Reads the /metrics of each replica; from the second time on, the counts are those since the time before."""

    def __init__(self, timeout: float = 5.0) -> None:
        self._timeout = timeout
        self._before: dict[str, _Scrape] = {}

    def read(self, urls: Iterable[str]) -> MetricsSnapshot:
        """The numbers of the replicas that answer.

        Raises:
            MetricsUnreadable: no replica answers.
        """
        asked = sorted(set(urls))
        with ThreadPoolExecutor(max_workers=16) as threads:
            answers = list(threads.map(self._scrape, asked))
        heard = {url: scrape for url, scrape in zip(asked, answers, strict=True) if scrape is not None}
        if not heard:
            raise MetricsUnreadable(f"no metrics at {', '.join(asked) or 'no address'}")
        before, self._before = self._before, heard
        return _since(before, heard)

    def _scrape(self, url: str) -> _Scrape | None:
        try:
            text = _fetch(url, self._timeout).decode()
            return _Scrape(time.monotonic(), _values(text))
        except (MetricsUnreadable, ValueError):
            return None


def _since(before: Mapping[str, _Scrape], now: Mapping[str, _Scrape]) -> MetricsSnapshot:
    counters: defaultdict[str, float] = defaultdict(float)
    for url, scrape in now.items():
        old = before[url].values if url in before else {}
        for name in COUNTERS:
            value = scrape.values.get(name, 0.0)
            earlier = old.get(name, 0.0)
            counters[name] += value - earlier if value >= earlier else value  # smaller after a restart
    spans = [scrape.at - before[url].at for url, scrape in now.items() if url in before]
    return snapshot_of(
        counters,
        {name: mean for name in GAUGES if (mean := _mean(scrape.values.get(name) for scrape in now.values()))},
        verifiers=sum(VERIFIER in scrape.values for scrape in now.values()),
        drafters=sum(DRAFTER in scrape.values for scrape in now.values()),
        seconds=sum(spans) / len(spans) if len(spans) == len(now) else None,
    )


def _values(text: str) -> dict[str, float]:
    wanted = {*COUNTERS, *GAUGES, VERIFIER, DRAFTER}
    sums: defaultdict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            for name in {sample.name, f"{sample.name}{{{labels}}}"} & wanted:
                sums[name] += sample.value
                counts[name] += 1
    return {name: value / counts[name] if name in GAUGES else value for name, value in sums.items()}


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value]
    return sum(known) / len(known) if known else 0.0


def _fetch(url: str, timeout: float, headers: Mapping[str, str] | None = None) -> bytes:
    """The body of the answer to a GET request.

    Raises:
        MetricsUnreadable: the URL does not answer.
    """
    try:
        request = urllib.request.Request(url, headers=dict(headers or {}))
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, ValueError) as error:
        raise MetricsUnreadable(f"{url} cannot be read: {error}") from error

"""Readers of metrics snapshots: from a Prometheus that scrapes every replica, or from each replica's /metrics."""

import json
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from specdec.serving.telemetry.scrapes import MetricsUnreadable, ScrapedProcess, Scrapes, fetch
from specdec.serving.telemetry.snapshot import COUNTERS, DRAFTER, GAUGES, VERIFIER, MetricsSnapshot, snapshot_of

_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Prometheus:
    """Reads metrics of the last `window` seconds from a Prometheus."""

    def __init__(
        self,
        url: str,
        window: int = 300,
        matchers: str = "",
        timeout: float = 5.0,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Create a reader.

        Args:
            url: base URL of the Prometheus.
            window: span over which counters are summed, in seconds.
            matchers: label matchers that narrow the series, such as `namespace="a"`.
            timeout: timeout of a response, in seconds.
            headers: returns the headers of each query.
        """
        self._url = url.rstrip("/")
        self._window = window
        self._matchers = matchers
        self._timeout = timeout
        self._headers = headers

    def read(self) -> MetricsSnapshot:
        """Return the metrics of all replicas.

        Raises:
            MetricsUnreadable: the server does not respond, or not as Prometheus does.
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
        answer = fetch(url, self._timeout, self._headers())
        try:
            found = json.loads(answer)["data"]["result"]
            return float(found[0]["value"][1]) if found else None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise MetricsUnreadable(f"{self._url} does not answer as Prometheus does") from error


class Scraper:
    """Reads each replica's /metrics. After the first read, counts cover the time since the previous read."""

    def __init__(self, timeout: float = 5.0) -> None:
        self._scrapes = Scrapes(timeout)

    def read(self, urls: Iterable[str]) -> MetricsSnapshot:
        """Return the metrics of the replicas that respond.

        Raises:
            MetricsUnreadable: no replica responds.
        """
        asked = sorted(set(urls))
        heard = self._scrapes.look(asked)
        if not heard:
            raise MetricsUnreadable(f"no metrics at {', '.join(asked) or 'no address'}")
        spans = [each.now.at - each.before.at for each in heard if each.before is not None]
        return snapshot_of(
            {name: sum(_grown(each, name) for each in heard) for name in COUNTERS},
            {name: mean for name in GAUGES if (mean := _mean(heard, name))},
            verifiers=sum(bool(each.now.values(VERIFIER)) for each in heard),
            drafters=sum(bool(each.now.values(DRAFTER)) for each in heard),
            seconds=fmean(spans) if len(spans) == len(heard) else None,
        )


def _grown(process: ScrapedProcess, name: str) -> float:
    metric, _, labels = name.partition("{")
    return process.grown(metric, **dict(_LABEL.findall(labels)))


def _mean(processes: Iterable[ScrapedProcess], gauge: str) -> float:
    """Return the mean over the processes with a measurement; 0 without any."""
    means = [fmean(values) for each in processes if (values := each.now.values(gauge))]
    return fmean(filter(None, means)) if any(means) else 0.0

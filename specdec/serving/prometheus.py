"""Metrics snapshots from a Prometheus that scrapes every replica."""

import json
import urllib.parse

from specdec.serving.metrics_snapshot import (
    COUNTERS,
    DRAFTER,
    GAUGES,
    VERIFIER,
    MetricsSnapshot,
    MetricsUnreadable,
    Sums,
    fetch,
    snapshot_of,
)


class Prometheus:
    """Reads the sums of the last `window` seconds."""

    def __init__(self, url: str, window: int = 300, matchers: str = "", timeout: float = 5.0) -> None:
        """Args: matchers: label matchers that narrow the series, such as `namespace="a"`."""
        self._url = url.rstrip("/")
        self._window = window
        self._matchers = matchers
        self._timeout = timeout

    def read(self) -> MetricsSnapshot:
        """The numbers of all replicas.

        Raises:
            MetricsUnreadable: it does not answer, or the answer is not one of Prometheus.
        """
        counters = {name: self._query(f"sum(increase({self._series(name)}[{self._window}s]))") for name in COUNTERS}
        gauges = {name: self._query(f"avg({self._series(name)} > 0)") for name in GAUGES}
        return snapshot_of(
            Sums(
                {name: value for name, value in counters.items() if value is not None},
                {name: value for name, value in gauges.items() if value is not None},
                verifiers=round(self._query(f"count({self._series(VERIFIER)})") or 0),
                drafters=round(self._query(f"count({self._series(DRAFTER)})") or 0),
                seconds=float(self._window),
            )
        )

    def _series(self, name: str) -> str:
        metric, _, labels = name.rstrip("}").partition("{")
        inside = ",".join(part for part in (labels, self._matchers) if part)
        return f"{metric}{{{inside}}}" if inside else metric

    def _query(self, query: str) -> float | None:
        answer = fetch(f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", self._timeout)
        try:
            found = json.loads(answer)["data"]["result"]
            return float(found[0]["value"][1]) if found else None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise MetricsUnreadable(f"{self._url} does not answer as Prometheus does") from error

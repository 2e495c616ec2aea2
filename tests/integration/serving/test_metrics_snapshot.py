"""Metrics of running services, scraped from each service and queried from a Prometheus."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest
from prometheus_client import CollectorRegistry

from drafter_service.metrics import DrafterMetrics
from gateway.ratio_controller.app import snapshot_reader
from gateway.ratio_controller.config import MetricsSettings
from specdec.cli.app import status_of
from specdec.cli.exit_codes import ExitCode
from specdec.rules.speculation import Origin
from specdec.serving.telemetry.metrics import serve_metrics
from specdec.serving.telemetry.readers import Prometheus, Scraper
from specdec.serving.telemetry.scrapes import MetricsUnreadable
from specdec.serving.telemetry.snapshot import COUNTERS, GAUGES
from specdec.wire.generation import Round
from verifier_service.metrics import VerifierMetrics

pytestmark = pytest.mark.integration


def a_round(drafted: int, accepted: int) -> Round:
    """Return a round of accepted drafts and one more token."""
    last = Origin.BONUS if accepted == drafted else Origin.RECOVERED
    origins = (Origin.ACCEPTED,) * accepted + (last,)
    tokens = (1,) * len(origins)
    return Round(base_len=0, tokens=tokens, origins=origins, draft=(1,) * drafted, accepted=accepted)


class Services:
    """A verifier's and a drafter's metrics, each on a port."""

    def __init__(self) -> None:
        self.verifier = VerifierMetrics(CollectorRegistry())
        self.drafter = DrafterMetrics(CollectorRegistry())

    def work(self) -> None:
        """Count ten rounds of four drafts in five passes, three of them starved."""
        for _ in range(7):
            self.verifier.count(a_round(4, 3), awaited=4)
        for _ in range(3):
            self.verifier.count(a_round(2, 2), awaited=4)
        for _ in range(5):
            self.verifier.pass_seconds.observe(0.02)
            self.verifier.batch_rows.observe(2)
        self.verifier.plain_seconds.set(0.018)
        self.verifier.drafter_rtt.labels("a:1").set(0.001)
        self.verifier.drafter_rtt.labels("b:1").set(0.003)
        for _ in range(8):
            self.drafter.step_seconds.observe(0.003)
            self.drafter.batch_size.observe(5)


@pytest.fixture
def services() -> Iterator[tuple[Services, list[str]]]:
    made = Services()
    with (
        closing(serve_metrics("127.0.0.1:0", made.verifier.registry, lambda: True)) as one,
        closing(serve_metrics("127.0.0.1:0", made.drafter.registry, lambda: True)) as other,
    ):
        yield made, [f"http://{server.address}/metrics" for server in (one, other)]


def test_the_numbers_are_those_of_the_services(services: tuple[Services, list[str]]) -> None:
    made, urls = services
    made.work()
    snapshot = Scraper().read(urls)
    assert (snapshot.verifiers, snapshot.drafters) == (1, 1)
    assert snapshot.alpha == pytest.approx(27 / 34)
    assert (snapshot.gamma, snapshot.starvation) == (4.0, 0.3)
    assert (snapshot.verify_pass, snapshot.verify_batch) == (pytest.approx(0.02), 2.0)
    assert (snapshot.draft_step, snapshot.draft_batch) == (pytest.approx(0.003), 5.0)
    assert (snapshot.plain_pass, snapshot.round_trip) == (0.018, pytest.approx(0.002))
    assert snapshot.verify_busy is None, "since when they have been running is not known"


def test_a_second_look_sees_only_what_happened_since(services: tuple[Services, list[str]]) -> None:
    made, urls = services
    made.work()
    scraper = Scraper()
    scraper.read(urls)
    made.verifier.count(a_round(2, 0), awaited=2)
    reading = scraper.read(urls)
    assert (reading.alpha, reading.gamma, reading.starvation) == (0.0, 2.0, 0.0)
    assert reading.draft_step is None
    assert reading.verify_busy == 0.0


def test_one_that_does_not_answer_is_left_out(services: tuple[Services, list[str]]) -> None:
    made, urls = services
    made.work()
    snapshot = Scraper(timeout=1.0).read([urls[0], "http://127.0.0.1:1/metrics"])
    assert (snapshot.verifiers, snapshot.drafters, snapshot.draft_step) == (1, 0, None)


def test_when_nobody_answers_that_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MetricsUnreadable):
        Scraper(timeout=1.0).read(["http://127.0.0.1:1/metrics"])
    assert status_of(["advise", "1", "--from", "http://127.0.0.1:1"]) == ExitCode.UNREACHABLE
    assert "cannot be read" in capsys.readouterr().err


def test_the_command_reads_what_runs(services: tuple[Services, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    made, urls = services
    made.work()
    arguments = [argument for url in urls for argument in ("--from", url)]
    assert status_of(["advise", "1000", *arguments, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["costs"]["alpha"] == pytest.approx(27 / 34)


class _PrometheusHandler(BaseHTTPRequestHandler):
    """Answers each query by its position in a list and records it."""

    asked: list[str]
    shown: list[tuple[str, str]]

    def do_GET(self) -> None:
        query = parse_qs(urlparse(self.path).query)["query"][0]
        self.shown.append((self.headers.get("X-Scope-OrgID", ""), self.headers.get("Authorization", "")))
        self.asked.append(query)
        value = float(self.asked.index(query) + 1)
        result = [] if "rtt" in query else [{"metric": {}, "value": [0, str(value)]}]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def shown() -> list[tuple[str, str]]:
    """Tenant and authorization headers of each query to the Prometheus."""
    return []


@pytest.fixture
def prometheus(shown: list[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (_PrometheusHandler,), {"asked": asked, "shown": shown}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_prometheus_is_asked_for_the_same_sums(prometheus: tuple[str, list[str]]) -> None:
    url, asked = prometheus
    snapshot = Prometheus(url, window=60, matchers='namespace="n"').read()
    assert len(asked) == len(COUNTERS) + len(GAUGES) + 2
    assert asked[0] == 'sum(increase(specdec_spec_accepted_tokens_total{namespace="n"}[60s]))'
    assert asked[1] == 'sum(increase(specdec_spec_tokens_by_origin_total{origin="recovered",namespace="n"}[60s]))'
    assert snapshot.alpha == pytest.approx(1 / 3)
    assert snapshot.round_trip is None


async def test_the_ratio_controller_shows_its_token_which_may_change(
    prometheus: tuple[str, list[str]], shown: list[tuple[str, str]], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n", encoding="utf-8")
    read = snapshot_reader(
        MetricsSettings(prometheus=prometheus[0], headers={"X-Scope-OrgID": "team"}, token_file=token)
    )
    await read()
    assert shown[-1] == ("team", "Bearer first")
    token.write_text("second\n", encoding="utf-8")
    await read()
    assert shown[-1] == ("team", "Bearer second")
    token.unlink()
    with pytest.raises(MetricsUnreadable, match=r"metrics\.token_file .* No such file"):
        await read()


def test_what_is_no_prometheus_is_said_so(services: tuple[Services, list[str]]) -> None:
    with pytest.raises(MetricsUnreadable):
        Prometheus(services[1][0].removesuffix("/metrics")).read()

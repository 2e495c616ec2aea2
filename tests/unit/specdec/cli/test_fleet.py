"""The fleet from its metrics: roles, rates between two samples, and processes that do not answer."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from specdec.cli.commands.top import frame, top
from specdec.cli.exit_codes import Unreachable
from specdec.cli.fleet import Fleet, urls_of
from specdec.cli.local.signals import Stop
from specdec.errors import ConfigError
from specdec.serving.telemetry.scrapes import ScrapedProcess, scraped

GATEWAY = 'specdec_gateway_requests_running 2\nspecdec_tokens_total{kind="output"} %d\nspecdec_session_store_up 1\n'
VERIFIER = """specdec_spec_rounds_total 10
specdec_spec_accepted_tokens_total 30
specdec_spec_draft_tokens_total 40
specdec_spec_alpha 0.75
specdec_verify_pass_seconds_sum 2
specdec_verify_pass_seconds_count 100
specdec_drafter_up{address="a",state="ready"} 1
specdec_drafter_up{address="a",state="connecting"} 0
"""
DRAFTER = "specdec_drafter_streams 1\nspecdec_drafter_sessions 3\n"

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve texts at one URL each, one after the other; the last one repeats. Records authorization headers."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(*texts: str, key: str = "") -> str:
        left = list(texts)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                allowed = not key or self.headers["authorization"] == f"Bearer {key}"
                text = (left.pop(0) if len(left) > 1 else left[0]) if allowed else ""
                self.send_response(200 if allowed else 401)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def shown(fleet: Fleet) -> str:
    console = Console(record=True, width=160)
    console.print(frame(fleet.look()))
    return console.export_text()


def test_every_process_is_known_by_what_it_exports(serve: Serve) -> None:
    urls = [serve(GATEWAY % 5), serve(VERIFIER), serve(DRAFTER), serve("python_info 1\n")]
    look = Fleet(urls).look()
    assert [[each.url for each in look.of(role)] for role in ("gateway", "verifier", "drafter")] == [
        [url] for url in urls[:3]
    ]
    assert look.silent == (urls[3],)


def test_rates_are_of_the_time_between_two_looks() -> None:
    process = ScrapedProcess("u", scraped(GATEWAY % 50, 12.0), scraped(GATEWAY % 10, 10.0))
    assert process.rate("specdec_tokens_total", kind="output") == 20.0
    assert process.rate("specdec_tokens_total", kind="prompt") == 0.0
    assert ScrapedProcess("u", scraped(GATEWAY % 50, 12.0)).rate("specdec_tokens_total") is None


def test_a_counter_that_began_anew_counts_from_its_start() -> None:
    process = ScrapedProcess("u", scraped(GATEWAY % 3, 12.0), scraped(GATEWAY % 10, 10.0))
    assert process.grown("specdec_tokens_total") == 3.0


def test_the_tables_show_what_drafts_bring(serve: Serve) -> None:
    text = shown(Fleet([serve(GATEWAY % 5), serve(VERIFIER), serve(DRAFTER), "http://127.0.0.1:1/metrics"]))
    (verifier,) = [line.split() for line in text.splitlines() if " 0.75 " in line]
    assert verifier[4:6] == ["75", "0.75"]
    assert "20.0" in verifier
    assert "1 gateway" in text
    assert "no answer: http://127.0.0.1:1/metrics" in text


def test_a_key_is_sent(serve: Serve) -> None:
    url = serve(GATEWAY % 5, key="secret")
    assert not Fleet([url]).look().processes
    assert Fleet([url], "secret").look().of("gateway")


def test_it_ends_after_so_many_looks_and_at_a_signal(serve: Serve) -> None:
    console, stop = Console(record=True, width=160), Stop()
    top(console, Fleet([serve(DRAFTER)]), 0.0, 3, stop)
    stop.request()
    top(console, Fleet([serve(DRAFTER)]), 60.0, 0, stop)
    assert "1 drafter" in console.export_text()


def test_a_fleet_of_which_nothing_answers_is_an_error() -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        top(Console(), Fleet(["http://127.0.0.1:1/metrics"]), 0.0, 1, Stop())


def test_processes_are_those_given_those_of_a_state_file_or_the_defaults(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps([{"role": "redis", "http": None}, {"role": "gateway", "http": "127.0.0.1:9"}]))
    assert urls_of(["http://a:1/metrics"], None) == ["http://a:1/metrics"]
    assert urls_of(["http://a:1/metrics"], state) == ["http://a:1/metrics", "http://127.0.0.1:9/metrics"]
    assert "http://127.0.0.1:8000/metrics" in urls_of([], None)
    for content in ("{", '["a"]'):
        state.write_text(content)
        with pytest.raises(ConfigError, match="not a file that"):
            urls_of([], state)
    with pytest.raises(ConfigError, match="/metrics"):
        urls_of(["127.0.0.1:8000"], None)

"""The load generator counts every answer, failure and distinct text; this runs without a cluster."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SCRIPT = Path(__file__).parent / "traffic.py"


@contextmanager
def _gateway(reply: Callable[[int], tuple[int, str]], enough: threading.Event) -> Iterator[str]:
    count = iter(range(1, 10**9))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            number = next(count)
            status, text = reply(number)
            body = json.dumps({"choices": [{"text": text}]}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            if number >= 10:
                enough.set()

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _report(reply: Callable[[int], tuple[int, str]]) -> dict[str, object]:
    enough = threading.Event()
    with _gateway(reply, enough) as address:
        environment = os.environ | {"GATEWAY": address, "CALLERS": "2"}
        with subprocess.Popen((sys.executable, SCRIPT), env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert enough.wait(60)
            process.send_signal(signal.SIGTERM)
            printed, _ = process.communicate(timeout=60)
    report: dict[str, object] = json.loads(printed.splitlines()[-1])
    return report


def test_what_is_answered_is_counted() -> None:
    report = _report(lambda number: (200, "text"))
    assert isinstance(report["answered"], int)
    assert report["answered"] >= 10
    assert (report["failed"], report["texts"]) == ([], ["text"])


def test_a_refusal_and_another_text_are_seen() -> None:
    report = _report(lambda number: (503 if number == 3 else 200, "other" if number == 5 else "text"))
    failed = report["failed"]
    assert isinstance(failed, list)
    assert len(failed) == 1
    assert "503" in failed[0]
    assert report["texts"] == ["other", "text"]

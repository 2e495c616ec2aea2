"""The script of `helm test` passes against a running system, and fails where drafts change tokens."""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from tests.e2e.system import ROOT, System

SCRIPT = ROOT / "helm" / "files" / "generate.py"


def _run(gateway: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GATEWAY": gateway, "PROMPT": "def main(", "MAX_TOKENS": "24"}
    return subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=120)


def test_it_passes_against_a_running_system(system: System) -> None:
    done = _run(system.http)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 tokens, the same with drafts and without" in done.stdout


class _InexactGateway(BaseHTTPRequestHandler):
    """A gateway whose tokens depend on whether drafts were made."""

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "demo"}]}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        token = b"1" if b'"off"' in body else b"2"
        self._answer(b'{"choices": [{"token_ids": [%s]}], "speculation": {}}' % token)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


def test_it_fails_when_drafts_change_a_token() -> None:
    with HTTPServer(("127.0.0.1", 0), _InexactGateway) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        done = _run(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert done.returncode == 1
    assert "tokens differ" in done.stderr

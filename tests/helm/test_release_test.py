"""`helm test` fails with a clear message if drafts are missing, and passes if they arrive or are not needed."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.helm.cases import values_of
from tests.helm.engine import CHART, Helm, manifests
from tests.helm.objects import pods

Reply = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


def _answer(tokens: list[int], drafted: int, **fallbacks: int) -> dict[str, Any]:
    metrics = {"speculative_decoding": {"num_draft_tokens": drafted}} if drafted else None
    report = {"mode": "rejection", "fallbacks": fallbacks}
    return {"choices": [{"token_ids": tokens}], "metrics": metrics, "speculation": report}


def _replies(speculative: dict[str, Any], plain: dict[str, Any] | None = None) -> Reply:
    def reply(asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        off = asked["speculation"]["mode"] == "off"
        return 200, (plain or _answer([1, 2, 3], 0)) if off else speculative

    return reply


@contextmanager
def _gateway(reply: Reply) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "large"}, {"id": "small"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._send(*reply(asked))

        def _send(self, status: int, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

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


def _run(gateway: str, drafts: str = "required", models: str = '["large"]') -> tuple[int, str]:
    environment = {"GATEWAY": gateway, "PROMPT": "p", "MAX_TOKENS": "3", "DRAFTS": drafts, "WAIT_SECONDS": "0"}
    environment["MODELS"] = models
    script = str(CHART / "files" / "generate.py")
    done = subprocess.run(
        [sys.executable, script], env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (_replies(_answer([1, 2, 3], 0)), "no draft token came: verifiers decode plainly and name no reason"),
        (_replies(_answer([1, 2, 3], 0, late=3)), "drafters are connected and answer nothing in time"),
        (_replies(_answer([1, 2, 3], 0, drafter_unavailable=3)), "verifiers reach no drafter"),
        (_replies(_answer([1, 2, 3], 0, tokenizer_mismatch=2, late=1)), "whose tokenizer is another"),
        (_replies(_answer([1, 2, 3], 0, not_worth_it=3)), "drafts cost more than they save"),
        (_replies(_answer([1, 2, 3], 0, no_match=3)), "choose a tests.prompt that repeats itself"),
        (_replies(_answer([1, 2, 4], 8)), "tokens differ: [1, 2, 3] without drafts, [1, 2, 4] with them"),
        (_replies(_answer([1, 2, 3], 8), _answer([1, 2, 3], 8)), "drafts were used where the request turned them off"),
        (_replies(_answer([], 8), _answer([], 0)), "tokens differ: []"),
        (lambda asked: (503, {"error": {"message": "no verifier"}}), "is refused with status 503"),
    ],
)
def test_what_does_not_speculate_fails_with_a_sentence(reply: Reply, sentence: str) -> None:
    with _gateway(reply) as address:
        status, printed = _run(address)
    assert (status, sentence in printed, "Traceback" in printed) == (1, True, False), printed


def test_a_gateway_that_is_not_there_fails_with_a_sentence() -> None:
    status, printed = _run("http://127.0.0.1:9")
    assert (status, "does not answer" in printed, "Traceback" in printed) == (1, True, False), printed


@pytest.mark.parametrize(
    ("answer", "drafts"),
    [
        (_answer([1, 2, 3], 8), "required"),
        (_answer([1, 2, 3], 0, drafter_unavailable=3), "optional"),
        (_answer([1, 2, 3], 0), "optional"),
    ],
)
def test_equal_tokens_pass_where_drafts_came_or_need_not(answer: dict[str, Any], drafts: str) -> None:
    with _gateway(_replies(answer)) as address:
        status, printed = _run(address, drafts)
    assert (status, "3 tokens, the same" in printed) == (0, True), printed


def test_every_model_is_tried_and_drafts_are_required_of_the_first() -> None:
    def reply(asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        drafted = 8 if asked["model"] == "large" and asked["speculation"]["mode"] != "off" else 0
        return 200, _answer([1, 2, 3], drafted)

    with _gateway(reply) as address:
        status, printed = _run(address, models='["large", "small"]')
    assert status == 0, printed
    assert "small: 3 tokens, the same with 0 drafted tokens" in printed


@pytest.mark.parametrize("models", ['["coder"]', '["large", "coder"]'])
def test_a_model_that_is_not_served_fails_with_a_sentence(models: str) -> None:
    """The answer of another model that is served does not count."""
    with _gateway(_replies(_answer([1, 2, 3], 8))) as address:
        status, printed = _run(address, models=models)
    assert (status, "coder: no verifier of it is ready" in printed, "Traceback" in printed) == (1, True, False), printed


def test_it_is_a_pod_that_stays_so_that_its_logs_can_be_read(helm: Helm) -> None:
    """`helm test --logs` reads the logs of the Pod with the hook's name, after the deletion policies were applied."""
    hooks = [
        each
        for each in manifests(helm.render(CHART, values_of("minimal-cpu")))
        if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"
    ]
    assert [each["kind"] for each in hooks] == ["Pod"]
    assert hooks[0]["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"
    assert hooks[0]["spec"]["restartPolicy"] == "Never"


def test_the_pod_is_told_all_models(helm: Helm) -> None:
    (container,) = pods(manifests(helm.render(CHART, values_of("models"))))["test"]["spec"]["containers"]
    assert {"name": "MODELS", "value": '["large","org/coder","small"]'} in container["env"]


@pytest.mark.parametrize(
    ("values", "drafts"),
    [
        ({}, "required"),
        ({"drafter": {"autoscaling": {"kind": "ratio", "minReplicas": 1}}}, "required"),
        ({"drafter": {"autoscaling": {"kind": "ratio"}}}, "optional"),
        ({"drafter": {"replicas": 0}}, "optional"),
        ({"drafter": {"enabled": False}}, "optional"),
        ({"speculation": {"gamma": 0, "gammaMax": 0}}, "optional"),
    ],
)
def test_drafts_are_required_where_there_are_always_drafters(helm: Helm, values: dict[str, Any], drafts: str) -> None:
    redis = {"redis": {"external": {"url": "redis://redis:6379/0"}}}
    (container,) = pods(manifests(helm.render(CHART, {**redis, **values})))["test"]["spec"]["containers"]
    assert {"name": "DRAFTS", "value": drafts} in container["env"]

"""After a gateway is killed in the middle of a stream, its client resumes at another one from its last event."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.e2e.system import START_SECONDS, System, running_system, wait_until

REQUEST: dict[str, Any] = {
    "model": "demo",
    "prompt": "import os\nimport sys\n\n\ndef main(",
    "max_tokens": 300,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream": True,
    "stream_options": {"resumable": True},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Run three gateways over one verifier and one store. Tests kill two of the gateways."""
    with running_system(tmp_path_factory.mktemp("pair"), "--gateways", "3") as running:
        yield running


def gateways(system: System) -> list[dict[str, Any]]:
    return [entry for entry in system.state if entry["role"] == "gateway"]


class Listener:
    """Read an event stream, and keep the events read before the connection breaks.

    The reading thread calls `early` once, after the first few tokens.
    """

    def __init__(self, early: Callable[[], object] = lambda: None) -> None:
        self._early: Callable[[], object] | None = early
        self.choices: dict[int, list[int]] = {0: []}
        self.last = ""

    @property
    def ids(self) -> list[int]:
        """Return the tokens of the first choice."""
        return self.choices[0]

    @property
    def was_early(self) -> bool:
        """Whether `early` has been called."""
        return self._early is None

    @property
    def generation(self) -> str:
        return self.last.partition(".")[0]

    def read(self, lines: Iterator[str], enough: int = 10**6) -> None:
        """Read to the end of the stream, or until the first choice has `enough` tokens."""
        for line in lines:
            if line.startswith("id: "):
                self.last = line.removeprefix("id: ")
            elif line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                for choice in chunk["choices"]:
                    self.choices.setdefault(choice["index"], []).extend(choice["token_ids"])
                if self._early is not None and len(self.ids) > 5:
                    self._early()
                    self._early = None
                if len(self.ids) >= enough:
                    return

    def begin(self, gateway: str, request: dict[str, Any], enough: int = 10**6) -> None:
        """Request a generation from a gateway."""
        with (
            httpx2.Client(timeout=START_SECONDS) as client,
            client.stream("POST", f"http://{gateway}/v1/completions", json=request) as events,
        ):
            self.read(events.iter_lines(), enough)

    def resume(self, gateway: str) -> None:
        """Resume reading at a gateway, from the last event."""
        path = f"http://{gateway}/v1/generations/{self.generation}/events"
        headers = {"last-event-id": self.last}
        with httpx2.Client(timeout=START_SECONDS) as client, client.stream("GET", path, headers=headers) as events:
            assert events.status_code == 200
            self.read(events.iter_lines())


Undisturbed = Callable[[dict[str, Any]], dict[int, list[int]]]


@pytest.fixture(scope="module")
def undisturbed(system: System) -> Undisturbed:
    """Return the tokens of each choice of a request from an undisturbed system. Each request is sent once."""
    known: dict[str, dict[int, list[int]]] = {}

    def tokens(request: dict[str, Any]) -> dict[int, list[int]]:
        name = json.dumps(request)
        if name not in known:
            known[name] = _answered(system, request)
        return known[name]

    return tokens


def _answered(system: System, request: dict[str, Any]) -> dict[int, list[int]]:
    with httpx2.Client(timeout=START_SECONDS) as client:
        answer = client.post(
            f"{system.http}/v1/completions", json=request | {"stream": False, "stream_options": None}
        ).json()
    return {choice["index"]: list(choice["token_ids"]) for choice in answer["choices"]}


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 11}])
def test_an_event_stream_goes_on_at_another_gateway(
    pair: System, undisturbed: Undisturbed, sampling: dict[str, Any]
) -> None:
    first, second, _ = gateways(pair)
    client = Listener()
    client.begin(first["http"], REQUEST | sampling, enough=20)
    client.resume(second["http"])
    assert client.choices == undisturbed(REQUEST | sampling)


def test_a_gateway_stopped_past_its_lease_is_fenced_and_follows_the_owner(
    pair: System, undisturbed: Undisturbed
) -> None:
    request = REQUEST | {"temperature": 0}
    expected = undisturbed(request)[0]
    first, second, _ = gateways(pair)
    left, moved = Listener(partial(os.kill, first["pid"], signal.SIGSTOP)), Listener()
    reader = threading.Thread(target=left.begin, args=(first["http"], request))
    reader.start()
    try:
        wait_until(lambda: left.was_early)
        moved.last = f"{left.generation}.0"
        moved.resume(second["http"])
        assert len(left.ids) < len(expected), "the gateway was stopped too late"
    finally:
        os.kill(first["pid"], signal.SIGCONT)
        reader.join()
    assert moved.ids == left.ids == expected


@pytest.mark.parametrize(("victim", "sampling"), [(0, {"temperature": 0}), (1, {"temperature": 1, "seed": 11, "n": 2})])
def test_a_killed_gateway_costs_no_token_and_repeats_none(
    pair: System, undisturbed: Undisturbed, victim: int, sampling: dict[str, Any]
) -> None:
    request = REQUEST | sampling
    expected = undisturbed(request)
    first, second = gateways(pair)[victim : victim + 2]
    client = Listener(partial(os.kill, first["pid"], signal.SIGKILL))
    with suppress(httpx2.HTTPError):
        client.begin(first["http"], request)
    assert len(client.ids) < len(expected[0]), "the gateway was killed too late"
    client.resume(second["http"])
    assert client.choices == expected

"""How a client that was interrupted gets the rest of its answer."""

from typing import Protocol

import httpx2

from tests.chaos.stream import Scenario, Stream


class WayBack(Protocol):
    """The one place that knows what the gateway offers to those who come back."""

    def begins_anew(self, stream: Stream) -> bool:
        """Whether the next connection shows again what was seen."""

    def request(self, http: httpx2.AsyncClient, door: str, scenario: Scenario, stream: Stream) -> httpx2.Request:
        """The request for the rest."""


class Restart:
    """Asks again from the start: the answer is a function of the request, so what was seen must come again."""

    def begins_anew(self, stream: Stream) -> bool:
        """Always."""
        return True

    def request(self, http: httpx2.AsyncClient, door: str, scenario: Scenario, stream: Stream) -> httpx2.Request:
        """The same request once more."""
        return http.build_request("POST", f"{door}/v1/completions", json=scenario.body)

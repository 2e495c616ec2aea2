"""The proof of exactness: sound deployments pass at the stated rate, and each kind of unsound one fails."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from specdec.cli.commands.prove import Plan, Proof, Refused, http, p_value, prove, show
from specdec.cli.exit_codes import Unreachable

PLAN = Plan("http://gateway", samples=200, alpha=0.01, streams=2)


class Server:
    """A server that draws tokens from given weights, possibly from others with drafts."""

    def __init__(self, drafted: tuple[int, ...] = (5, 3, 2), greedy: str = "a", accepted: int | None = 3) -> None:
        self._weights = {"off": (5, 3, 2), "rejection": drafted}
        self._greedy = {"off": "a", "rejection": greedy}
        self._accepted = accepted
        self.logprobs = True
        self.seeds: list[int] = []

    def __call__(self, url: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if body is None:
            return {"data": [{"id": "demo"}]}
        mode = "off" if "plain" in url else body.get("speculation", {"mode": "rejection"})["mode"]
        if "seed" in body:
            self.seeds.append(body["seed"])
            tokens = random.Random(body["seed"]).choices("abc", self._weights[mode], k=body["max_tokens"])
        else:
            tokens = [self._greedy[mode]] * body["max_tokens"]
        metrics = {"speculative_decoding": {"num_accepted_draft_tokens": self._accepted}}
        logprobs = {"tokens": tokens} if self.logprobs else None
        return {"choices": [{"logprobs": logprobs}], "metrics": None if self._accepted is None else metrics}


def test_a_sound_deployment_is_exact_and_no_seed_is_used_twice() -> None:
    server = Server()
    proof = prove(PLAN, server)
    assert proof.verdict == "exact"
    assert proof.p > 0.01
    assert len(set(server.seeds)) == len(server.seeds) == 400


@pytest.mark.parametrize(
    ("server", "verdict"),
    [
        (Server(drafted=(3, 5, 2)), "not exact"),
        (Server(greedy="b"), "not exact"),
        (Server(accepted=0), "nothing was drafted"),
        (Server(accepted=None), "exact"),
    ],
    ids=["another law", "another greedy token", "no drafts", "drafts not told"],
)
def test_what_is_wrong_is_found(server: Server, verdict: str) -> None:
    assert prove(PLAN, server).verdict == verdict


def test_a_peer_is_held_against_a_reference_without_any_field_of_ours() -> None:
    plan = Plan("http://peer/v1", reference="http://plain", samples=200, alpha=0.01)
    assert prove(plan, Server(accepted=None)).verdict == "exact"
    assert prove(plan, Server(drafted=(2, 6, 2), accepted=None)).verdict == "not exact"


def test_a_server_that_does_not_name_its_tokens_is_refused() -> None:
    server = Server()
    server.logprobs = False
    with pytest.raises(Refused, match="logprobs"):
        prove(PLAN, server)


def test_the_false_alarm_rate_is_what_it_is_said_to_be() -> None:
    dice = random.Random(1)

    def drawn() -> list[tuple[str, ...]]:
        return [tuple(dice.choices("abcdefgh", range(1, 9), k=3)) for _ in range(30)]

    alarms = sum(p_value(drawn(), drawn(), 49, seed=test) <= 0.1 for test in range(100))
    assert 1 <= alarms <= 22  # 10 expected; 4 standard deviations are 12


def test_every_permutation_of_equal_sets_is_as_far() -> None:
    assert p_value([("a",)] * 9, [("a",)] * 9, 99) == 1.0


def test_the_report_says_sizes_threshold_and_verdict() -> None:
    console = Console(record=True, width=200, quiet=False)
    show(console, Proof(4, 4, 400, 0.4, 0.001, 12), as_json=False)
    text = console.export_text()
    for said in ("4 of 4", "p = 0.4", "400 sequences", "0.001", "false-alarm rate", "12", "exact"):
        assert said in text


def test_nothing_at_the_address_is_said_so() -> None:
    with pytest.raises(Unreachable):
        http("http://127.0.0.1:9/v1/models", None)

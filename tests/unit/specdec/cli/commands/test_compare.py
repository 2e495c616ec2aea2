"""The comparison is fair, and reports a gain only if every pair of runs shows one."""

from itertools import cycle

import pytest

from specdec.cli.commands.compare import identity, measure, verdict
from specdec.client.events import FinishedEvent, GenerationResult, PromptRequest, StartedEvent, Token
from specdec.rules.speculation import Mode, Origin
from specdec.sampling.params import FinishReason

FIRST = 0.1
"""Seconds to the first token."""


class Server:
    """A server with given speeds, one per answer, that records its requests."""

    def __init__(
        self,
        plain: float,
        *speculative: float,
        tokens: tuple[int, int] = (1, 1),
        drafted: int = 10,
        rounds: int = 50,
    ) -> None:
        self.asked: list[PromptRequest] = []
        self.fallbacks: dict[str, int] = {}
        self._speeds = {True: cycle((plain,)), False: cycle(speculative)}
        self._tokens = dict(zip((True, False), tokens, strict=True))
        self._drafted, self._rounds = drafted, rounds

    def __call__(self, request: PromptRequest) -> GenerationResult:
        self.asked.append(request)
        off = request.mode is Mode.OFF or request.gamma == 0
        drafted, rounds = (0, 101) if off else (self._drafted, self._rounds)
        fallbacks = {} if off else self.fallbacks
        lossy = request.lenience is not None
        finished = FinishedEvent(FinishReason.LENGTH, 1, 101, drafted, drafted // 2, rounds, fallbacks, lossy)
        tokens = (Token(self._tokens[off], "x", Origin.PLAIN),)
        seconds = FIRST + 100 / next(self._speeds[off])
        return GenerationResult(StartedEvent("g", "demo", request.seed or 0), tokens, finished, FIRST, seconds)


def test_both_ways_get_the_same_seed_after_a_warm_up_and_in_turn() -> None:
    server = Server(10, 20)
    measure(server, PromptRequest("p", max_tokens=64, gamma=3), runs=2)
    modes = [request.mode for request in server.asked]
    assert modes == [Mode.OFF, None] * 3
    assert {request.max_tokens for request in server.asked} == {64}
    assert len({request.seed for request in server.asked}) == 1
    assert server.asked[0].seed is not None


def test_the_two_ways_share_no_prefix_cache_and_their_own_runs_do() -> None:
    server = Server(10, 20)
    measure(server, PromptRequest("p"), runs=3)
    off, on = {each.cache_salt for each in server.asked[::2]}, {each.cache_salt for each in server.asked[1::2]}
    assert len(off) == len(on) == 1
    assert off != on
    assert all(off | on)


def test_a_seed_that_was_given_is_used() -> None:
    server = Server(10, 20)
    measure(server, PromptRequest("p", seed=0), runs=1)
    assert {request.seed for request in server.asked} == {0}


def test_faster_is_said_with_its_range() -> None:
    found = measure(Server(10, 30, 25, 22, 28), PromptRequest("p"), runs=3)
    report = found.report()
    assert report["speedup"] == pytest.approx(2.5)
    assert report["speedup_range"] == [pytest.approx(2.2), pytest.approx(2.8)]
    assert report["difference"] == "faster"
    assert verdict(found) == "Drafts make it 2.50 times as fast here (2.20 to 2.80 in 3 runs)."


def test_the_wait_for_the_first_token_is_no_part_of_the_speed() -> None:
    found = measure(Server(1000, 2000), PromptRequest("p"), runs=1)
    assert found.report()["plain"]["tokens_per_second"] == pytest.approx(1000)
    assert found.report()["plain"]["first_token_seconds"] == FIRST


def test_slower_is_said_too() -> None:
    found = measure(Server(20, 10), PromptRequest("p"), runs=1)
    assert found.difference == "slower"
    assert "slower here: 0.50" in verdict(found)


def test_a_difference_inside_the_spread_is_none() -> None:
    found = measure(Server(10, 9.7, 30, 10.5, 10.1), PromptRequest("p"), runs=4)
    assert found.difference == "none"
    assert verdict(found) == "No difference: 0.97 to 3.00 in 4 runs."


def test_without_drafts_no_speed_up_is_claimed_and_the_reason_is_said() -> None:
    server = Server(10, 20, drafted=0, rounds=101)
    assert verdict(measure(server, PromptRequest("p"), runs=2)).endswith("; no drafts were used.")
    server.fallbacks = {"not_worth_it": 49, "first_round": 1}
    said = verdict(measure(server, PromptRequest("p"), runs=2))
    assert said.startswith(
        "No difference: 2.00 to 2.00 in 2 runs; no drafts were used, because the server expects no gain"
    )
    server.fallbacks = {"drafter_unavailable": 50}
    assert "because no drafter answers" in verdict(measure(server, PromptRequest("p"), runs=1))


def test_one_token_a_round_is_no_gain_whatever_the_clock_says() -> None:
    server = Server(10, 20, rounds=100)
    server.fallbacks = {"not_worth_it": 90}
    found = measure(server, PromptRequest("p"), runs=3)
    assert found.difference == "none"
    assert "hardly any draft was accepted" in verdict(found)


def test_the_coupled_mode_is_held_against_itself_without_drafts() -> None:
    server = Server(10, 20)
    measure(server, PromptRequest("p", mode=Mode.COUPLED), runs=1)
    assert {(request.mode, request.gamma) for request in server.asked} == {(Mode.COUPLED, 0), (Mode.COUPLED, None)}


def test_lenience_is_asked_of_drafts_alone_and_excuses_other_tokens() -> None:
    server = Server(1, 1, tokens=(1, 2))
    found = measure(server, PromptRequest("p", temperature=0.0, mode=Mode.REJECTION, lenience=0.5), runs=1)
    assert {(request.mode, request.lenience) for request in server.asked} == {(Mode.OFF, None), (Mode.REJECTION, 0.5)}
    assert found.report()["lossy"]
    assert "lossy" in identity(found)


def test_differing_tokens_are_expected_only_where_they_are() -> None:
    sampled = measure(Server(1, 1, tokens=(1, 2)), PromptRequest("p", temperature=1.0), runs=1)
    greedy = measure(Server(1, 1, tokens=(1, 2)), PromptRequest("p", temperature=0.0), runs=1)
    coupled = measure(Server(1, 1, tokens=(1, 2)), PromptRequest("p", mode=Mode.COUPLED), runs=1)
    assert not sampled.identical
    assert "as they may" in identity(sampled)
    assert "bug" in identity(greedy)
    assert "bug" in identity(coupled)


def test_identical_tokens_are_said_to_be() -> None:
    found = measure(Server(1, 1), PromptRequest("p"), runs=2)
    assert found.identical
    assert "identical" in identity(found)

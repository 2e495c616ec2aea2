"""The comparison is fair, and honest when it does not flatter."""

from specdec.cli.commands.compare import identity, measure, verdict
from specdec.client.events import FinishedEvent, GenerationResult, PromptRequest, StartedEvent, Token
from specdec.rules.speculation import Mode, Origin
from specdec.sampling.params import FinishReason


class Server:
    """Answers with given speeds; records what was asked."""

    def __init__(self, plain: float, speculative: float, tokens: tuple[int, int] = (1, 1), drafted: int = 10) -> None:
        self.asked: list[PromptRequest] = []
        self.fallbacks: dict[str, int] = {}
        self._seconds = {True: 100 / plain, False: 100 / speculative}
        self._tokens = dict(zip((True, False), tokens, strict=True))
        self._drafted = drafted

    def __call__(self, request: PromptRequest) -> GenerationResult:
        self.asked.append(request)
        off = request.mode is Mode.OFF or request.gamma == 0
        drafted = 0 if off else self._drafted
        fallbacks = {} if off else self.fallbacks
        lossy = request.lenience is not None
        finished = FinishedEvent(FinishReason.LENGTH, 1, 100, drafted, drafted // 2, 50, fallbacks, lossy)
        tokens = (Token(self._tokens[off], "x", Origin.PLAIN),)
        return GenerationResult(StartedEvent("g", "demo", request.seed or 0), tokens, finished, 0.1, self._seconds[off])


def test_both_ways_get_the_same_seed_after_a_warm_up_and_in_turn() -> None:
    server = Server(10, 20)
    measure(server, PromptRequest("p", max_tokens=64, gamma=3), runs=2)
    modes = [request.mode for request in server.asked]
    assert modes == [Mode.OFF, None] * 3
    assert [request.max_tokens for request in server.asked] == [8, 8, 64, 64, 64, 64]
    assert len({request.seed for request in server.asked}) == 1
    assert server.asked[0].seed is not None


def test_a_seed_that_was_given_is_used() -> None:
    server = Server(10, 20)
    measure(server, PromptRequest("p", seed=0), runs=1)
    assert {request.seed for request in server.asked} == {0}


def test_faster_is_said() -> None:
    found = measure(Server(10, 25), PromptRequest("p"), runs=1)
    assert found.report()["speedup"] == 2.5
    assert verdict(found) == "Speculation is 2.50 times as fast here."


def test_slower_is_said_too() -> None:
    found = measure(Server(20, 10), PromptRequest("p"), runs=1)
    assert "slower here: 0.50" in verdict(found)


def test_without_drafts_no_speed_up_is_claimed_and_the_reason_is_said() -> None:
    server = Server(10, 20, drafted=0)
    assert "expects no gain" in verdict(measure(server, PromptRequest("p"), runs=1))
    server.fallbacks = {"not_worth_it": 49, "first_round": 1}
    assert "expects no gain" in verdict(measure(server, PromptRequest("p"), runs=1))
    server.fallbacks = {"drafter_unavailable": 50}
    assert "Nothing was drafted (drafter_unavailable)" in verdict(measure(server, PromptRequest("p"), runs=1))


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

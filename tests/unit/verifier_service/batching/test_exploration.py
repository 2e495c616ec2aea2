"""Before drafting is given up it is tried, and now and then again."""

from verifier_service.batching.costs import ExploringGamma, MeasuredCosts


class Told:
    """Says what a test tells it to."""

    def __init__(self, gamma: int) -> None:
        self.value = gamma
        self.seen: list[tuple[int, int]] = []

    def gamma(self) -> int:
        return self.value

    def observe(self, drafted: int, accepted: int) -> None:
        self.seen.append((drafted, accepted))


def exploring(explored: int) -> ExploringGamma:
    return ExploringGamma(Told(0), explored, lambda drafted, accepted: None)


def play(controller: ExploringGamma, rounds: int) -> list[int]:
    """γ of each round when every draft comes and none is accepted."""
    chosen = []
    for _ in range(rounds):
        gamma = controller.gamma()
        controller.observe(gamma, 0)
        chosen.append(gamma)
    return chosen


def test_a_controller_that_drafts_is_followed() -> None:
    told = Told(7)
    taught: list[tuple[int, int]] = []
    assert play(ExploringGamma(told, 4, lambda *seen: taught.append(seen)), 5) == [7] * 5
    assert told.seen == taught == [(7, 0)] * 5


def test_one_that_does_not_is_followed_after_a_look() -> None:
    assert play(exploring(4), 8) == [4, 4, 4, 0, 0, 0, 0, 0]


def test_the_next_looks_come_later_and_later() -> None:
    chosen = play(exploring(4), 400)
    starts = [index for index in range(1, 400) if chosen[index] and not chosen[index - 1]]
    assert starts == [3 + 64, 3 + 64 + 3 + 128]


def test_a_look_does_not_pass_the_limit() -> None:
    for gamma_max, explored in ((2, 2), (0, 0), (16, 4)):
        controller = MeasuredCosts(gamma_max, draft_step=lambda: None).controller(None)
        controller._inner = Told(0)
        assert play(controller, 2) == [explored] * 2


def test_a_fixed_draft_length_is_not_explored() -> None:
    assert play(MeasuredCosts(16, draft_step=lambda: None).controller(0), 2) == [0, 0]


def test_a_look_is_not_over_until_drafts_have_come() -> None:
    controller = exploring(4)
    for _ in range(10):
        controller.observe(0, 0)
    assert controller.gamma() == 4

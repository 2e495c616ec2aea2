"""Trials are short, stay within their budget, and correct the prediction by the measured ratio."""

import pytest

from verifier_service.speculation.trials import BatchRound, Trials

PLAIN_SECONDS = 0.01


class Play:
    """Rounds of four sessions with a true gain from drafts of `gain` and a predicted gain of `predicted`."""

    def __init__(self, gain: float, predicted: float) -> None:
        self.trials = Trials()
        self.gain = gain
        self.predicted = predicted
        self.ways: list[bool] = []
        self.settled = True

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            drafting = self.trials.drafts(self.predicted)
            seconds = 2 * PLAIN_SECONDS / self.gain if drafting else PLAIN_SECONDS
            tokens = 8 if drafting else 4
            self.trials.observe(BatchRound(tokens, seconds, drafting, self.settled, self.predicted))
            self.ways.append(drafting)


def test_after_a_few_plain_rounds_the_prediction_holds_until_a_trial() -> None:
    good, bad = Play(1.5, 1.5), Play(0.8, 1.04)
    good.run(10)
    bad.run(4)
    assert good.ways == [False] * 4 + [True] * 6
    assert not any(bad.ways)
    assert good.trials.measured is None
    assert good.trials.correction == 1.0


@pytest.mark.parametrize(("gain", "predicted"), [(0.7, 1.5), (1.5, 0.8)])
def test_a_wrong_prediction_is_overruled_by_what_is_measured(gain: float, predicted: float) -> None:
    play = Play(gain, predicted)
    play.run(6000)
    assert play.trials.measured == pytest.approx(gain, rel=0.01)
    assert play.trials.correction == pytest.approx(gain / predicted, rel=0.2)
    assert sum(play.ways[-500:]) == pytest.approx(500 if gain > 1 else 0, abs=25)


def test_a_right_prediction_stays_uncorrected() -> None:
    play = Play(1.4, 1.4)
    play.run(2000)
    assert play.trials.correction == pytest.approx(1.0, abs=0.01)


def test_plain_rounds_are_tried_a_few_in_a_hundred() -> None:
    play = Play(1.4, 1.4)
    play.run(3000)
    assert 0.01 < play.ways[1000:].count(False) / 2000 < 0.05


def test_trials_of_drafting_cost_a_token_in_a_hundred_with_their_lost_time() -> None:
    play = Play(0.5, 0.5)
    play.run(20000)
    drafted = sum(play.ways)
    lost = drafted * (2 / 0.5 - 2) * 4
    assert 0 < 8 * drafted + lost <= 0.012 * 4 * 20000


def test_a_trial_ends_early_once_it_is_surely_lost() -> None:
    """Three rounds have an error of at least 0.06, so three errors below 1.05 are 0.88."""
    poor, little = Play(0.85, 0.5), Play(0.95, 0.5)
    poor.run(20)
    little.run(20)
    assert (sum(poor.ways), sum(little.ways)) == (3, 8)
    assert poor.trials.measured == pytest.approx(0.85)


def _varied(seconds: float) -> list[bool]:
    """Return which of 20 rounds draft, if drafts commit 1 and 9 tokens in turn and take this many seconds."""
    trials, ways = Trials(), list[bool]()
    for turn in range(20):
        drafting = trials.drafts(0.5)
        tokens, took = (1 + 8 * (turn % 2), seconds) if drafting else (4, PLAIN_SECONDS)
        trials.observe(BatchRound(tokens, took, drafting, True, 0.5))
        ways.append(drafting)
    return ways


def test_a_trial_whose_rounds_differ_is_not_surely_lost_after_a_few() -> None:
    """The first three rounds yield 0.76 of plain decoding, all eight 1.04."""
    assert sum(_varied(1.2 * PLAIN_SECONDS)) == 8


def test_a_trial_ends_early_once_its_cost_reaches_what_it_may_bring() -> None:
    """Three rounds yield 0.2 and have cost 43 tokens, but vary too much to show a loss."""
    assert sum(_varied(4.5 * PLAIN_SECONDS)) == 3


def test_rounds_in_which_a_drafter_catches_up_are_not_compared_for_a_while() -> None:
    play = Play(1.0, 1.5)
    play.run(4)
    play.settled = False
    play.run(8)
    assert play.trials.settling is False
    waiting = Play(1.0, 1.5)
    waiting.run(4)
    waiting.settled = False
    waiting.run(4)
    assert waiting.trials.settling
    waiting.settled = True
    waiting.run(1)
    assert not waiting.trials.settling


def read_then_drafted(reading: int) -> Trials:
    """Run plain rounds, then this many rounds in which drafters read, then drafts with a gain of 1.5."""
    trials = Trials()
    while trials.measured is None:
        drafting = trials.drafts(0.9)
        late = drafting and reading > 0
        reading -= late
        seconds = 2 * PLAIN_SECONDS / 1.5 if drafting and not late else PLAIN_SECONDS
        tokens = 8 if drafting and not late else 4
        trials.observe(BatchRound(tokens, seconds, drafting, not late, 0.9, prefilling=late))
    return trials


def test_a_trial_waits_for_drafters_that_read_the_sessions() -> None:
    assert read_then_drafted(50).measured == pytest.approx(1.5)
    silent = read_then_drafted(10**6).measured
    assert silent == pytest.approx(1.0), "one that never answers ends its trial"


def test_rounds_in_which_drafters_read_cost_a_trial_no_token() -> None:
    """1600 plain rounds earn eight rounds of 8 tokens, however long the drafters read before them."""
    trials = read_then_drafted(50)
    waited = 0
    while not trials.drafts(0.01):
        trials.observe(BatchRound(4, PLAIN_SECONDS, False, True, 0.01))
        waited += 1
    assert waited == pytest.approx(1600, rel=0.02)


def test_drafts_that_are_predicted_to_bring_nothing_are_tried_all_the_same() -> None:
    play = Play(1.5, 0.0)
    play.run(6000)
    assert play.trials.measured == pytest.approx(1.5)


def correction_after_one_trial(gain: float, spread: int) -> float:
    """Return the correction of a prediction of 1.5 by a trial with this gain, in rounds of 8 ± `spread` tokens."""
    trials, rounds = Trials(), 0
    while trials.measured is None:
        drafting = trials.drafts(1.5)
        tokens = 8 + spread * (-1) ** rounds if drafting else 4
        trials.observe(BatchRound(tokens, 2 * PLAIN_SECONDS / gain if drafting else PLAIN_SECONDS, drafting, True, 1.5))
        rounds += 1
    return trials.correction


def test_a_trial_counts_by_its_standard_error() -> None:
    assert correction_after_one_trial(1.4, spread=0) == pytest.approx((1.4 / 1.5) ** (2 / 3), rel=0.01)
    assert correction_after_one_trial(1.4, spread=6) == pytest.approx((1.4 / 1.5) ** 0.4, rel=0.01)


def test_a_prediction_that_errs_by_more_than_chance_is_not_believed() -> None:
    assert correction_after_one_trial(0.7, spread=0) == pytest.approx(0.7 / 1.5, rel=0.02)


@pytest.mark.parametrize(("gain", "trials"), [(1.0, 3), (0.5, 1)])
def test_what_may_pay_is_tried_again_before_a_trial_is_earned(gain: float, trials: int) -> None:
    play = Play(gain, 0.95 * gain)
    play.run(700)
    began = [now and not before for before, now in zip(play.ways, play.ways[1:], strict=False)]
    assert sum(began) == trials


def begins(shown: float, at: float, predicted: float) -> bool:
    """Whether drafting begins at a prediction, after a trial that measured `shown` for a prediction of `at`."""
    play = Play(shown, at)
    while play.trials.measured is None:
        play.run(1)
    return play.trials.drafts(predicted) and not play.trials.running


@pytest.mark.parametrize(
    ("shown", "at", "predicted", "begun"),
    [(1.0, 1.0, 1.12, False), (1.12, 1.0, 1.0, True), (0.9, 0.9, 1.1, False), (0.9, 0.9, 1.2, True)],
)
def test_drafts_that_a_trial_refuted_begin_where_clearly_more_is_predicted(
    shown: float, at: float, predicted: float, begun: bool
) -> None:
    assert begins(shown, at, predicted) is begun


def test_once_drafts_came_rounds_without_count_although_drafters_prefill() -> None:
    """Short answers, whose drafters read again and again, are thus measured with this cost."""
    play = Play(1.5, 1.5)
    play.run(20)
    assert play.ways[-1]
    play.trials.observe(BatchRound(4, 1e6, True, False, 1.5, prefilling=True))
    play.run(100)
    assert (play.trials.measured or 1.0) < 0.1


def test_drafts_are_to_be_better_than_guesses() -> None:
    """Predictions are gains over plain rounds, and rounds with guesses are faster than plain rounds."""
    trials, ways = Trials(), list[bool]()
    for _ in range(400):
        ways.append(trials.drafts(1.4))
        worth, took = (1.4 if ways[-1] else 1.7) * PLAIN_SECONDS, PLAIN_SECONDS
        trials.observe(BatchRound(worth, took, ways[-1], True, 1.4, guessed=not ways[-1]))
    assert sum(ways) < 20
    assert trials.expected(1.4) == pytest.approx(1.4 / 1.7, rel=0.05)
    assert trials.measured == pytest.approx(1.4 / 1.7, rel=0.05)

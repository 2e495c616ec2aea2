"""Log probabilities are the target's own for every token at its position, and finite."""

import math

import pytest
import torch

from specdec.errors import InternalError, NoDistribution
from specdec.sampling.scoring import LEAST, score


def test_each_token_is_scored_in_its_row_by_the_logits_alone() -> None:
    logits = 3 * torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    before, tokens = logits.clone(), [3, 0, 39, 7, 7]
    expected = logits.double().log_softmax(-1)
    scored = score(logits, tokens, 4)
    assert torch.equal(logits, before)
    for row, (token, found) in enumerate(zip(tokens, scored, strict=True)):
        assert found.logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
        assert [each for each, _ in found.top] == expected[row].topk(4).indices.tolist()
        assert [value for _, value in found.top] == pytest.approx(expected[row].topk(4).values.tolist(), abs=1e-5)


def test_likely_tokens_are_reported_on_request_and_no_more_than_there_are() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0]])
    assert score(logits, [1], 0)[0].top == ()
    assert [token for token, _ in score(logits, [1], 20)[0].top] == [1, 0, 2]


def test_of_equals_the_lower_id_comes_first() -> None:
    (found,) = score(torch.tensor([[2.0, 5.0, 2.0, 5.0]]), [1], 4)
    assert [token for token, _ in found.top] == [1, 3, 0, 2]


def test_an_impossible_token_has_the_least_logprob_and_not_infinity() -> None:
    (found,) = score(torch.tensor([[0.0, -math.inf]]), [1], 2)
    assert (found.logprob, found.top) == (LEAST, ((0, 0.0), (1, LEAST)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_distribution_are_an_error(bad: float) -> None:
    with pytest.raises(NoDistribution):
        score(torch.tensor([[0.0, bad]]), [0], 1)


def test_there_is_a_row_for_every_token() -> None:
    with pytest.raises(InternalError):
        score(torch.zeros(2, 3), [0], 1)


def test_a_shorter_report_is_the_beginning_of_a_longer_one() -> None:
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(2))
    assert score(logits, [4], 9)[0].cut(3) == score(logits, [4], 3)[0]

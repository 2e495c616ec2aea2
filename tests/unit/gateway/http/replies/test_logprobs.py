"""Lists of log probabilities stay aligned with the tokens, also for tokens without any."""

from typing import TypeVar

import pytest
from pydantic import BaseModel

from gateway.http.replies.logprobs import chat_logprobs, completion_logprobs
from gateway.http.replies.pieces import json_pieces
from gateway.text.output import OutputToken
from specdec.rules.speculation import Origin
from specdec.sampling.logprobs import TokenLogprobs
from tests.support.gateway_fakes import ByteTokenizer

TOKEN_BYTES = ByteTokenizer().token_bytes
_Model = TypeVar("_Model", bound=BaseModel)


def written(found: _Model | None) -> _Model:
    """Return the log probabilities as a client reads them."""
    assert found is not None
    return type(found).model_validate_json(b"".join(json_pieces(found)))


def token(char: str, logprobs: TokenLogprobs | None = None) -> OutputToken:
    return OutputToken(ord(char), char, Origin.PLAIN, logprobs)


def test_without_any_there_is_no_list() -> None:
    assert chat_logprobs([token("a")], TOKEN_BYTES) is completion_logprobs([token("a")], TOKEN_BYTES, 0) is None
    assert chat_logprobs([], TOKEN_BYTES) is completion_logprobs([], TOKEN_BYTES, 0) is None


def test_a_token_whose_logprobs_are_lost_keeps_its_place_and_says_so() -> None:
    tokens = [token("a"), token("b", TokenLogprobs(-1.0, ((99, -0.5),)))]
    chat = written(chat_logprobs(tokens, TOKEN_BYTES))
    completion = written(completion_logprobs(tokens, TOKEN_BYTES, 7))
    assert [(each.token, each.logprob, len(each.top_logprobs)) for each in chat.content] == [
        ("a", None, 0),
        ("b", -1.0, 1),
    ]
    assert completion.model_dump() == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"c": -0.5, "b": -1.0}],
        "text_offset": [7, 8],
    }


@pytest.mark.parametrize("top", [((98, -1.0), (97, -2.0)), ((97, -0.5), (98, -1.0))])
def test_the_token_itself_is_among_the_likely_ones_once(top: tuple[tuple[int, float], ...]) -> None:
    found = written(completion_logprobs([token("b", TokenLogprobs(-1.0, top))], TOKEN_BYTES, 0))
    assert found.top_logprobs == [{chr(other): logprob for other, logprob in top}]


def test_of_tokens_that_read_the_same_the_likeliest_is_shown() -> None:
    lookalikes = TokenLogprobs(-4.0, ((200, -0.5), (201, -1.0)))
    found = written(completion_logprobs([OutputToken(202, "", Origin.PLAIN, lookalikes)], TOKEN_BYTES, 0))
    assert found.top_logprobs == [{"\ufffd": -0.5}]

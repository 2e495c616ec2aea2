"""The format of an answer is stored as text with its generation."""

import pytest

from gateway.http.replies.writers import AnswerFormat


@pytest.mark.parametrize(
    "given",
    [
        AnswerFormat(),
        AnswerFormat(chat=True),
        AnswerFormat(True, True, True, True, True),
        AnswerFormat(include_usage=True),
        AnswerFormat(tokens_as_ids=True),
    ],
)
def test_a_format_comes_back_from_its_text(given: AnswerFormat) -> None:
    assert AnswerFormat.parse(given.text()) == given


def test_without_a_format_an_answer_is_a_completion_with_its_ids() -> None:
    assert AnswerFormat.parse("") == AnswerFormat(token_ids=True)

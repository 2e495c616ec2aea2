"""Log probabilities as the OpenAI API writes them: a list for chats, parallel lists for completions."""

from collections.abc import Callable, Iterable, Sequence

from pydantic import BaseModel

from gateway.output import OutputToken
from specdec.logprobs import TokenLogprobs

Piece = Callable[[int], bytes]
"""The bytes a token stands for."""


class TopLogprob(BaseModel):
    """A token that might have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the output, and the likeliest ones at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry for every token of the choice, in order."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """Parallel lists, one entry for every token of the choice."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """The likeliest tokens, and the one of the output."""
    text_offset: list[int]
    """Where in the choice's text the token's share begins, in characters."""


def chat_logprobs(tokens: Sequence[OutputToken], piece: Piece) -> ChatLogprobs | None:
    """Of a choice or a piece of one; None when nobody asked."""
    scored = [(token.id, token.logprobs) for token in tokens if token.logprobs is not None]
    if not scored:
        return None
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_spelled(piece(token), own.logprob).model_dump(),
                top_logprobs=[_spelled(piece(other), logprob) for other, logprob in own.top],
            )
            for token, own in scored
        ]
    )


def completion_logprobs(tokens: Sequence[OutputToken], piece: Piece, start: int) -> CompletionLogprobs | None:
    """Of a choice or a piece of one, whose text begins `start` characters into the choice's; None when nobody asked."""
    scored = [(token.id, token.logprobs) for token in tokens if token.logprobs is not None]
    if not scored:
        return None
    return CompletionLogprobs(
        tokens=[_text(piece(token)) for token, _ in scored],
        token_logprobs=[own.logprob for _, own in scored],
        top_logprobs=[_alternatives(token, own, piece) for token, own in scored],
        text_offset=list(_offsets(tokens, start)),
    )


def _alternatives(token: int, own: TokenLogprobs, piece: Piece) -> dict[str, float]:
    """By text; of several tokens that read the same, the likeliest."""
    found: dict[str, float] = {}
    for other, logprob in (*own.top, (token, own.logprob)):
        found.setdefault(_text(piece(other)), logprob)
    return found


def _offsets(tokens: Iterable[OutputToken], start: int) -> Iterable[int]:
    for token in tokens:
        yield start
        start += len(token.text)


def _spelled(data: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=_text(data), logprob=logprob, bytes=list(data))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")

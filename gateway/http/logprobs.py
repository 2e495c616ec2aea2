"""Log probabilities as the OpenAI API writes them: a list for chats, parallel lists for completions."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from pydantic import BaseModel

from gateway.text.output import OutputToken
from specdec.rules.logprobs import TokenLogprobs

Piece = Callable[[int], bytes]
"""The bytes a token stands for."""


class TopLogprob(BaseModel):
    """A token that might have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(BaseModel):
    """A token of the output, and the likeliest ones at its position."""

    token: str
    logprob: float | None
    """Null of a token that was read back from the session store, which does not keep it."""
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry for every token of the choice, in order."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """Parallel lists, one entry for every token of the choice; null as in chats."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens, and the one of the output."""
    text_offset: list[int]
    """Where in the choice's text the token's share begins, in characters."""


def chat_logprobs(tokens: Sequence[OutputToken], piece: Piece) -> ChatLogprobs | None:
    """Of a choice or a piece of one; None when no token has any."""
    if not any(token.logprobs for token in tokens):
        return None
    return ChatLogprobs(content=[_of_chat(token, piece) for token in tokens])


def completion_logprobs(tokens: Sequence[OutputToken], piece: Piece, start: int) -> CompletionLogprobs | None:
    """Of a choice or a piece of one, whose text begins at `start`, in characters; None when no token has any."""
    if not any(token.logprobs for token in tokens):
        return None
    return CompletionLogprobs(
        tokens=[_text(piece(token.id)) for token in tokens],
        token_logprobs=[token.logprobs.logprob if token.logprobs else None for token in tokens],
        top_logprobs=[_alternatives(token.id, token.logprobs, piece) if token.logprobs else None for token in tokens],
        text_offset=list(accumulate((len(token.text) for token in tokens[:-1]), initial=start)),
    )


def _of_chat(token: OutputToken, piece: Piece) -> TokenLogprob:
    data, own = piece(token.id), token.logprobs
    top = [_spelled(piece(other), logprob) for other, logprob in own.top] if own else []
    return TokenLogprob(token=_text(data), logprob=own.logprob if own else None, bytes=list(data), top_logprobs=top)


def _alternatives(token: int, own: TokenLogprobs, piece: Piece) -> dict[str, float]:
    """By text; of several tokens that read the same, the likeliest."""
    found: dict[str, float] = {}
    for other, logprob in (*own.top, (token, own.logprob)):
        found.setdefault(_text(piece(other)), logprob)
    return found


def _spelled(data: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=_text(data), logprob=logprob, bytes=list(data))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")

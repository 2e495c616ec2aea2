"""Log probabilities as the OpenAI API writes them: a list for chats, parallel lists for completions."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from pydantic import BaseModel

from gateway.http.replies.pieces import Deferred
from gateway.text.output import OutputToken

TokenBytes = Callable[[int], bytes]
"""Returns the bytes of a token id."""


class TopLogprob(BaseModel):
    """One of the likeliest tokens at a position of the output."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(BaseModel):
    """One token of the output, with the likeliest tokens at its position."""

    token: str
    logprob: float | None
    """Null for a token that was read back from the session store without it."""
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry for every token of the choice, in order. `chat_logprobs` defers the list."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """Parallel lists with one entry for every token of the choice; null where a chat has null.

    `completion_logprobs` defers the lists.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    """At each position the likeliest tokens and the token of the output, with their log probabilities."""
    text_offset: list[int]
    """Start of each token's share in the choice's text, in characters."""


def chat_logprobs(tokens: Sequence[OutputToken], token_bytes: TokenBytes) -> ChatLogprobs | None:
    """Return the log probabilities of a choice or a part of it; None if no token has any."""
    if not any(token.logprobs for token in tokens):
        return None
    return ChatLogprobs.model_construct(content=Deferred(tokens, lambda token: _of_chat(token, token_bytes)))


def chat_scores(tokens: Sequence[OutputToken], token_bytes: TokenBytes) -> list[dict[str, Any]]:
    """Return the fields of the `TokenLogprob` of each token; empty if no token has any."""
    return [_of_chat(token, token_bytes) for token in tokens] if any(token.logprobs for token in tokens) else []


def completion_logprobs(
    tokens: Sequence[OutputToken], token_bytes: TokenBytes, start: int, *, asked: bool = False
) -> CompletionLogprobs | None:
    """Return the log probabilities of a choice or a part of it; None if no token has any, unless `asked` is true.

    `start` is the start of the part in the choice's text, in characters.
    """
    if not (asked or any(token.logprobs for token in tokens)):
        return None
    return CompletionLogprobs.model_construct(
        tokens=Deferred(tokens, lambda token: _text(token_bytes(token.id))),
        token_logprobs=Deferred(tokens, lambda token: token.logprobs.logprob if token.logprobs else None),
        top_logprobs=Deferred(tokens, lambda token: _alternatives(token, token_bytes)),
        text_offset=list(accumulate((len(token.text) for token in tokens[:-1]), initial=start)),
    )


def _of_chat(token: OutputToken, token_bytes: TokenBytes) -> dict[str, Any]:
    """Return the fields of a `TokenLogprob`; a model for each of very many would take ten times as long."""
    own = token.logprobs
    top = [_scored(token_bytes(other), logprob) for other, logprob in own.top] if own else []
    return _scored(token_bytes(token.id), own.logprob if own else None) | {"top_logprobs": top}


def _scored(data: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": _text(data), "logprob": logprob, "bytes": list(data)}


def _alternatives(token: OutputToken, token_bytes: TokenBytes) -> dict[str, float] | None:
    """Return log probabilities by text; several tokens with the same text get that of the likeliest."""
    if token.logprobs is None:
        return None
    found: dict[str, float] = {}
    for other, logprob in (*token.logprobs.top, (token.id, token.logprobs.logprob)):
        found.setdefault(_text(token_bytes(other)), logprob)
    return found


def _text(data: bytes) -> str:
    return data.decode(errors="replace")

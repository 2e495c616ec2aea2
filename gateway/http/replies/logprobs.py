"""Log probabilities as the OpenAI API writes them: a list for chats, parallel lists for completions."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from pydantic import BaseModel

from gateway.text.output import OutputToken
from specdec.sampling.logprobs import TokenLogprobs

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
    """One entry for every token of the choice, in order."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """Parallel lists with one entry for every token of the choice; null where a chat has null."""

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
    return ChatLogprobs(content=[_of_chat(token, token_bytes) for token in tokens])


def completion_logprobs(
    tokens: Sequence[OutputToken], token_bytes: TokenBytes, start: int, *, asked: bool = False
) -> CompletionLogprobs | None:
    """Return the log probabilities of a choice or a part of it; None if no token has any, unless `asked` is true.

    `start` is the start of the part in the choice's text, in characters.
    """
    if not (asked or any(token.logprobs for token in tokens)):
        return None
    return CompletionLogprobs(
        tokens=[_text(token_bytes(token.id)) for token in tokens],
        token_logprobs=[token.logprobs.logprob if token.logprobs else None for token in tokens],
        top_logprobs=[
            _alternatives(token.id, token.logprobs, token_bytes) if token.logprobs else None for token in tokens
        ],
        text_offset=list(accumulate((len(token.text) for token in tokens[:-1]), initial=start)),
    )


def _of_chat(token: OutputToken, token_bytes: TokenBytes) -> TokenLogprob:
    data, own = token_bytes(token.id), token.logprobs
    spelled = [(token_bytes(other), logprob) for other, logprob in own.top] if own else []
    top = [TopLogprob(token=_text(each), logprob=logprob, bytes=list(each)) for each, logprob in spelled]
    return TokenLogprob(token=_text(data), logprob=own.logprob if own else None, bytes=list(data), top_logprobs=top)


def _alternatives(token: int, own: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, float]:
    """Return log probabilities by text; several tokens with the same text get that of the likeliest."""
    found: dict[str, float] = {}
    for other, logprob in (*own.top, (token, own.logprob)):
        found.setdefault(_text(token_bytes(other)), logprob)
    return found


def _text(data: bytes) -> str:
    return data.decode(errors="replace")

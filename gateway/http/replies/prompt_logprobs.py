"""Log probabilities of a prompt's tokens: as vLLM writes them, and before those of an output that echoes the prompt."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, SkipValidation

from gateway.http.replies.logprobs import TokenBytes
from gateway.http.replies.pieces import Deferred
from gateway.text.detokenizer import Decode, Detokenizer
from gateway.text.output import OutputToken
from specdec.rules.speculation import Origin
from specdec.sampling.logprobs import TokenLogprobs


class PromptLogprob(BaseModel):
    """One token at a position of the prompt, as vLLM describes it."""

    logprob: float
    rank: int
    """Place among all tokens, from 1 on."""
    decoded_token: str


PromptLogprobs = Annotated[list[dict[str, PromptLogprob] | None], SkipValidation]
"""At each position of the prompt its token and the likeliest ones, by their ids; null at the first position.

`prompt_logprobs` defers the list.
"""


def prompt_logprobs(prompt: Sequence[int], found: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> Deferred:
    """Return the log probabilities in vLLM's format.

    Args:
        prompt: tokens of the prompt.
        found: log probabilities of each token after the first.
        token_bytes: returns the bytes of a token id.
    """
    scores: list[TokenLogprobs | None] = [None, *found]

    def position(at: int) -> dict[str, dict[str, Any]] | None:
        own = scores[at]
        return None if own is None else _position(prompt[at], own, token_bytes)

    return Deferred(range(len(prompt)), position)


def echoed(prompt: Sequence[int], found: Sequence[TokenLogprobs], decode: Decode) -> Iterator[OutputToken]:
    """Yield the prompt as output tokens with their text; the first has no log probability."""
    text = Detokenizer(decode)
    for token, own in zip(prompt, (None, *found), strict=True):
        yield OutputToken(token, text.push(token), Origin.PLAIN, own)


def _position(token: int, own: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, dict[str, Any]]:
    """Return the fields of each `PromptLogprob`."""
    ranked = [(token, own.logprob, own.rank), *((each, value, at) for at, (each, value) in enumerate(own.top, 1))]
    return {
        str(each): {"logprob": value, "rank": rank, "decoded_token": token_bytes(each).decode(errors="replace")}
        for each, value, rank in reversed(ranked)
    }

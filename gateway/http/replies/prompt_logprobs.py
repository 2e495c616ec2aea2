"""Log probabilities of a prompt's tokens: as vLLM writes them, and before those of an output that echoes the prompt."""

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from gateway.http.replies.logprobs import TokenBytes
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


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""At each position of the prompt its token and the likeliest ones, by their ids; null at the first position."""


def prompt_logprobs(prompt: Sequence[int], found: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> PromptLogprobs:
    """Return the log probabilities in vLLM's format.

    Args:
        prompt: tokens of the prompt.
        found: log probabilities of each token after the first.
        token_bytes: returns the bytes of a token id.
    """
    positions = zip(prompt[1:], found, strict=True)
    return [None, *(_position(token, own, token_bytes) for token, own in positions)]


def echoed(prompt: Sequence[int], found: Sequence[TokenLogprobs], decode: Decode) -> Iterator[OutputToken]:
    """Yield the prompt as output tokens with their text; the first has no log probability."""
    text = Detokenizer(decode)
    for token, own in zip(prompt, (None, *found), strict=True):
        yield OutputToken(token, text.push(token), Origin.PLAIN, own)


def _position(token: int, own: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, PromptLogprob]:
    ranked = [(token, own.logprob, own.rank), *((each, value, at) for at, (each, value) in enumerate(own.top, 1))]
    return {
        str(each): PromptLogprob(logprob=value, rank=rank, decoded_token=token_bytes(each).decode(errors="replace"))
        for each, value, rank in reversed(ranked)
    }

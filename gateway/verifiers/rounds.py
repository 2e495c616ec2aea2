"""Checks what a verifier sends before anything is made of it: a round continues the call, and says only what can be."""

import math
from collections.abc import Iterator
from itertools import chain

from specdec.errors import NoVerifier
from specdec.sampling.logprobs import TokenLogprobs
from specdec.wire.generation import GenerationCall, Round


class RoundCheck:
    """Checks the rounds of one call in their order."""

    def __init__(self, call: GenerationCall, vocab_size: int) -> None:
        self._length = len(call.tokens)
        self._limit = call.prompt_len + call.max_tokens
        self._prompt_len = call.prompt_len
        scored = call.prompt_logprobs is not None and len(call.tokens) == call.prompt_len
        self._scored = call.prompt_len - 1 if scored else 0
        """Tokens of the prompt whose log probabilities the next round has."""
        self._vocab_size = vocab_size

    def take(self, verified: Round) -> None:
        """Check the next round.

        Raises:
            NoVerifier: no sound verifier sends this, so it is as good as lost.
        """
        count = len(verified.tokens)
        sound = (
            verified.base_len == self._length
            and self._length + count <= self._limit
            and (count > 0 or verified.finish is not None)
            and len(verified.origins) == count
            and len(verified.logprobs) in (0, count)
            and len(verified.prompt_logprobs) == self._scored
            and verified.accepted <= min(count, len(verified.draft))
            and verified.cached_tokens <= self._prompt_len
            and self._has_only_ids(verified)
            and not _has_nan(verified)
            and (verified.detail is None or len(verified.detail.judged) in (0, len(verified.draft)))
        )
        if not sound:
            raise NoVerifier(f"the verifier was lost: its round behind {self._length} tokens makes no sense")
        self._length += count
        self._scored = 0

    def _has_only_ids(self, verified: Round) -> bool:
        named = tuple(token for scores in _scores(verified) for token, _ in scores.top)
        listed = (ids for ids in (verified.tokens, verified.draft, named) if ids)
        return all(min(ids) >= 0 and max(ids) < self._vocab_size for ids in listed)


def _has_nan(verified: Round) -> bool:
    """Whether a log probability is not a number; one of a masked id is minus infinity."""
    values = (value for own in _scores(verified) for value in (own.logprob, *(score for _, score in own.top)))
    return any(map(math.isnan, values))


def _scores(verified: Round) -> Iterator[TokenLogprobs]:
    return chain(verified.logprobs, verified.prompt_logprobs)

"""Validates the rounds of a verifier before use: each continues the call and has consistent content."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from specdec.errors import NoVerifier
from specdec.sampling.logprobs import TokenLogprobs
from specdec.wire.generation import GenerationCall, Round, Timing


class RoundCheck:
    """Validates the rounds of one call in order."""

    def __init__(self, call: GenerationCall, vocab_size: int) -> None:
        self._length = len(call.tokens)
        self._limit = call.prompt_len + call.max_tokens
        self._prompt_len = call.prompt_len
        scored = call.prompt_logprobs is not None and len(call.tokens) == call.prompt_len
        self._scored = call.prompt_len - 1 if scored else 0
        """Number of prompt tokens whose log probabilities the next round must have."""
        self._vocab_size = vocab_size

    def take(self, verified: Round) -> None:
        """Check the next round.

        Raises:
            NoVerifier: the round is invalid, so the verifier counts as lost.
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
            raise NoVerifier(f"the verifier was lost: its round after {self._length} tokens is invalid")
        self._length += count
        self._scored = 0

    def _has_only_ids(self, verified: Round) -> bool:
        named = tuple(token for scores in _scores(verified) for token, _ in scores.top)
        listed = (ids for ids in (verified.tokens, verified.draft, named) if ids)
        return all(min(ids) >= 0 and max(ids) < self._vocab_size for ids in listed)


def _has_nan(verified: Round) -> bool:
    """Whether a log probability is NaN; minus infinity is valid for a masked id."""
    values = (value for own in _scores(verified) for value in (own.logprob, *(score for _, score in own.top)))
    return any(map(math.isnan, values))


def _scores(verified: Round) -> Iterator[TokenLogprobs]:
    return chain(verified.logprobs, verified.prompt_logprobs)


def joined_rounds(rounds: Sequence[Round]) -> Iterator[Round]:
    """Yield the rounds in order, with each run of joinable neighbours merged to one round."""
    if len(rounds) == 1:
        yield rounds[0]
        return
    together: list[Round] = []
    for each in rounds:
        if together and not joinable(together[-1], each):
            yield joined(together)
            together = []
        together.append(each)
    if together:
        yield joined(together)


def joinable(first: Round, second: Round) -> bool:
    """Whether two rounds can be merged.

    The merge preserves the statistics, and any fault for which one of the two would be refused.
    """
    return (
        _is_plain(first)
        and _is_plain(second)
        and first.finish is None
        and second.base_len == first.base_len + len(first.tokens)
        and not (second.cached_tokens or second.prompt_logprobs)
        and (first.fallback, first.drafter, first.forced) == (second.fallback, second.drafter, second.forced)
        and bool(first.logprobs) == bool(second.logprobs)
    )


def joined(rounds: Sequence[Round]) -> Round:
    """Merge joinable neighbours to one round; a single round is returned unchanged."""
    first, last = rounds[0], rounds[-1]
    if len(rounds) == 1:
        return first
    timings = [each.timing for each in rounds]
    return first._replace(
        tokens=tuple(chain.from_iterable(each.tokens for each in rounds)),
        origins=tuple(chain.from_iterable(each.origins for each in rounds)),
        logprobs=tuple(chain.from_iterable(each.logprobs for each in rounds)),
        finish=last.finish,
        speedup=last.speedup,
        timing=Timing(
            sum(each.draft for each in timings),
            sum(each.queue for each in timings),
            sum(each.verify for each in timings),
        ),
    )


def _is_plain(verified: Round) -> bool:
    """Whether a round has no draft and no detail, and lists of equal length. A merge would hide a length mismatch."""
    count = len(verified.tokens)
    return (
        count > 0
        and not verified.draft
        and not verified.accepted
        and verified.detail is None
        and len(verified.origins) == count
        and len(verified.logprobs) in (0, count)
    )

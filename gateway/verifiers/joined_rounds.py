"""Joins plain rounds of one generation that arrive together, so that they cost one commit and one chunk."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from specdec.wire.generation import Round, Timing


def joined_rounds(rounds: Sequence[Round]) -> Iterator[Round]:
    """The rounds in their order, with one round for each run of neighbours that can be joined."""
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
    """Whether one round can stand for both.

    Nothing is lost by it: neither the statistics, nor a fault for which one of the two would be refused.
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
    """One round for neighbours of which each can be joined to the next; a single one is returned as it is."""
    first, last = rounds[0], rounds[-1]
    if len(rounds) == 1:
        return first
    timings = [each.timing for each in rounds]
    return replace(
        first,
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
    """Whether a round has no draft and no detail; its lists must fit, since joining would hide that they do not."""
    count = len(verified.tokens)
    return (
        count > 0
        and not verified.draft
        and not verified.accepted
        and verified.detail is None
        and len(verified.origins) == count
        and len(verified.logprobs) in (0, count)
    )

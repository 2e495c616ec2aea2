"""What the sessions want of the target, and how much of it goes into the next pass; a pure policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specdec.rules.draft import NO_DRAFT, Draft
from specdec.rules.params import Mode, SamplingParams
from specdec.rules.sampling import History

NO_HISTORY = History()
_LEVEL_SECONDS = 30.0


def rank(priority: int, arrival: float) -> float:
    """A session's place among all, least first: by arrival, where a level of priority is worth 30 seconds of waiting.

    Nobody waits forever: who came long enough ago is before everyone who comes now. `priority` is 0 for most, less for
    those to go before them; `arrival` in seconds.
    """
    return arrival + _LEVEL_SECONDS * priority


@dataclass(frozen=True, slots=True)
class KvRequest:
    """A session's right to KV."""

    session: str
    limit: int
    """Tokens it may reach."""
    rank: float
    """See `rank`; who is last gives up KV first."""
    domain: str = ""
    """KV is shared with sessions of the same domain only."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One session's round."""

    session: str
    """Names the session's KV."""
    tokens: Sequence[int]
    """Every committed token, at least one; not changed while the row waits."""
    mode: Mode
    params: SamplingParams
    draft: Draft = NO_DRAFT
    history: History = NO_HISTORY
    """Prompt and output, for parameters that count them."""
    lenience: float = 1.0
    """ℓ; 1 is exact."""
    logprobs: int | None = None
    """How many likely tokens are reported beside each committed one; None is no logprobs."""

    @property
    def goal(self) -> int:
        """Tokens that have KV once the row has been judged, its drafts aside."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """The beginning of a sequence that needs KV and no verdict."""

    session: str
    tokens: Sequence[int]
    """As in Row."""
    goal: int
    """How many of them need KV; 0 asks for no more than the right to it."""


Work = Row | Prefill


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledChunk:
    """What of a session's work goes into a pass."""

    work: Work
    start: int
    """Tokens with KV before."""
    count: int
    """Committed tokens that the pass computes."""
    most: int | None = None
    """Most drafts of a row that it judges, from the first; None is all."""

    @property
    def complete(self) -> bool:
        """Whether the work is done with it; only then a row's drafts are judged."""
        return self.start + self.count == self.work.goal

    @property
    def row(self) -> Row | None:
        """The row that gets a verdict, with the drafts that are judged."""
        if not isinstance(self.work, Row) or not self.complete:
            return None
        draft = self.work.draft
        whole = self.most is None or len(draft.tokens) <= self.most
        return self.work if whole else replace(self.work, draft=draft.cut(self.most or 0))

    @property
    def drafts(self) -> int:
        """How many those are."""
        return len(self.row.draft.tokens) if self.row else 0

    @property
    def length(self) -> int:
        """Tokens with KV behind the pass, drafts included."""
        return self.start + self.count + self.drafts


@dataclass(frozen=True, slots=True)
class Budget:
    """What goes into one pass beside the last token of each session that decodes."""

    chunk_tokens: int
    """Tokens of prompts."""
    draft_tokens: int
    """Drafts of all sessions together."""


def plan(waiting: Sequence[tuple[Work, int]], budget: Budget) -> list[ScheduledChunk]:
    """The shares of the next pass, in the order of `waiting`.

    Every session that decodes takes part; where all drafts together are too many, the longest are cut short. Those with
    more than one token to compute share `chunk_tokens`: the first of them has half of it at least, so that it gets
    through, and the rest goes to whoever needs least, so that a short prompt does not wait for a long one.

    Args:
        waiting: work, each with how many of its session's tokens have KV, fewer than its goal; in order of rank.
        budget: of the pass.
    """
    missing = [work.goal - start for work, start in waiting]
    prompts = [index for index, count in enumerate(missing) if count > 1]
    counts = dict.fromkeys(range(len(missing)), 1) | dict.fromkeys(prompts, 0)
    if prompts:
        counts[prompts[0]] = min(missing[prompts[0]], max(budget.chunk_tokens // 2, 1))
        room = budget.chunk_tokens - counts[prompts[0]]
        for index in sorted(prompts[1:], key=missing.__getitem__) + prompts[:1]:
            more = min(missing[index] - counts[index], room)
            counts[index] += more
            room -= more
    shares = [
        ScheduledChunk(work, start, counts[index]) for index, (work, start) in enumerate(waiting) if counts[index]
    ]
    most = level([share.drafts for share in shares], budget.draft_tokens)
    return [replace(share, most=most) for share in shares]


def level(wanted: Sequence[int], budget: int) -> int:
    """The greatest number that all may have, who want so much, within a budget for all together."""
    left = budget
    for above, want in zip(range(len(wanted), 0, -1), sorted(wanted), strict=True):
        if want * above > left:
            return left // above
        left -= want
    return max(wanted, default=0)

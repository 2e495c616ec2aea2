"""The rows that wait for the target, and how much of each goes into the next pass; a pure policy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from specdec.grammar.state import TokenMasks
from specdec.rules.draft import NO_DRAFT, Draft, Verdict
from specdec.sampling.distribution import History
from specdec.trees.tree import TreeDraft
from specdec.wire.generation import GenerationCall
from verifier_service.backends.prompt_scores import PIECE, PromptScores

_NO_HISTORY = History()
_LEVEL_SECONDS = 30.0
"""Seconds of waiting that one level of priority is worth."""


def rank(priority: int, arrival: float) -> float:
    """A generation's place among all, least first: by arrival, where a level of priority is worth 30 s of waiting.

    So no generation waits forever: one that came long enough ago is before all that come now.

    Args:
        priority: 0 for most; less goes first.
        arrival: in seconds.
    """
    return arrival + _LEVEL_SECONDS * priority


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One request of a generation to the target.

    A row whose goal is all of its tokens gets a verdict on its draft; one with a smaller goal is a prefill and gets
    none. Goal 0 asks for the right to KV and computes nothing.
    """

    call: GenerationCall
    kv_name: str
    """Names the sequence's KV at the engine; unique in the process."""
    rank: float
    """Place in the queue, least first; the row of the greatest rank gives up its KV first."""
    limit: int
    """Tokens that the sequence may reach."""
    tokens: Sequence[int]
    """Every committed token, at least one; not changed while the row waits."""
    goal: int
    """How many of the tokens, from the first, must have KV."""
    draft: Draft | TreeDraft = NO_DRAFT
    catching_up: bool = False
    """Whether it has no draft because its drafter still reads the tokens."""
    grammar: TokenMasks | None = None
    """The session's own state in its grammar; only the thread of the model uses it while the row waits."""
    runs_ahead: bool = False
    """Whether a plain round may follow before the session asks for it."""
    unasked: bool = False
    """Whether it followed another so."""
    scores: PromptScores | None = None
    """Takes the log probabilities of the prompt, where the first round is to report them."""

    def behind(self, tokens: Sequence[int]) -> "Row":
        """The plain row that follows where these are the committed tokens, before the session asks for it."""
        return Row(self.call, self.kv_name, self.rank, self.limit, tokens, len(tokens), runs_ahead=True, unasked=True)

    @property
    def history(self) -> History:
        """Prompt and output where the sampling parameters count tokens, else empty."""
        if not self.call.sampling.needs_history:
            return _NO_HISTORY
        prompt_len = self.call.prompt_len
        return History(self.call.tokens[:prompt_len], tuple(self.tokens[prompt_len:]))


class Gathers(Enum):
    """Whether the next pass waits for a round that waits for its draft, so that all go together."""

    NOT = "not"
    """Not at all: a round that still waits when the next pass begins goes with what it has."""
    BRIEFLY = "briefly"
    """While every row that is ready has a draft, and it costs these less than a pass of their own costs the missing."""
    ALWAYS = "always"
    """As long as the round itself waits, which is as long as that pays for the batch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on a row, and the pass that it came from."""

    verdict: Verdict
    started: float
    """When the pass began, by `time.perf_counter`."""
    seconds: float
    """Duration of the pass."""
    offered: int
    """How many of the row's drafts went into the pass; a verdict on fewer found the draft unusable."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledChunk:
    """The part of a row that goes into a pass."""

    row: Row
    start: int
    """Tokens that have KV before the pass."""
    count: int
    """Committed tokens that the pass computes."""
    most: int | None = None
    """Most drafts that the pass judges, from the first; None is all."""

    @property
    def complete(self) -> bool:
        """Whether the row reaches its goal in this pass."""
        return self.start + self.count == self.row.goal

    @property
    def judges(self) -> bool:
        """Whether the row gets its verdict in this pass."""
        return self.complete and self.row.goal == len(self.row.tokens)

    @property
    def judged(self) -> Row | None:
        """The row with the drafts that this pass judges; None when it gives no verdict."""
        if not self.judges:
            return None
        if self.most is None or len(self.row.draft.tokens) <= self.most:
            return self.row
        return replace(self.row, draft=self.row.draft.cut(self.most))

    @property
    def drafts(self) -> int:
        """Number of drafts that this pass judges."""
        if not self.judges:
            return 0
        count = len(self.row.draft.tokens)
        return count if self.most is None else min(count, self.most)

    @property
    def scored(self) -> int:
        """Tokens, from the first of the chunk on, after which the prompt goes on and is scored."""
        return 0 if self.row.scores is None else self.row.scores.scored(self.start, self.count)

    @property
    def length(self) -> int:
        """Tokens that have KV after the pass, drafts included."""
        return self.start + self.count + self.drafts


def plan(waiting: Sequence[tuple[Row, int]], chunk_tokens: int, draft_tokens: int) -> list[ScheduledChunk]:
    """The chunks of the next pass, in the order of `waiting`.

    Every row that decodes takes part; where all drafts together are too many, the longest are cut short. Rows with
    more than one token to compute share `chunk_tokens`: the first of them has half of it at least, so that it gets
    through, and the rest goes to those that need least, so that a short prompt does not wait for a long one. Of the
    prompts that are scored, one takes part, with a short piece.

    Args:
        waiting: rows by rank, each with how many of its tokens have KV, fewer than its goal.
        chunk_tokens: tokens of prompts beside the last token of each session that decodes.
        draft_tokens: drafts of all sessions together.
    """
    waiting = list(_one_scored(waiting))
    missing = [min(row.goal - start, PIECE if row.scores else row.goal) for row, start in waiting]
    prompts = [index for index, count in enumerate(missing) if count > 1]
    counts = dict.fromkeys(range(len(missing)), 1) | dict.fromkeys(prompts, 0)
    if prompts:
        counts[prompts[0]] = min(missing[prompts[0]], max(chunk_tokens // 2, 1))
        room = chunk_tokens - counts[prompts[0]]
        for index in sorted(prompts[1:], key=missing.__getitem__) + prompts[:1]:
            more = min(missing[index] - counts[index], room)
            counts[index] += more
            room -= more
    chunks = [ScheduledChunk(row, start, counts[index]) for index, (row, start) in enumerate(waiting) if counts[index]]
    drafts = [chunk.drafts for chunk in chunks]
    if sum(drafts) <= draft_tokens:
        return chunks
    most = level(drafts, draft_tokens)
    return [replace(chunk, most=most) for chunk in chunks]


def _one_scored(waiting: Sequence[tuple[Row, int]]) -> Iterator[tuple[Row, int]]:
    """The rows without those whose prompts are scored but the first."""
    scoring = False
    for row, start in waiting:
        if row.scores is None or not scoring:
            yield row, start
        scoring = scoring or row.scores is not None


def turn(waiting: Sequence[Row], sessions: int) -> list[Row]:
    """The rows of the next pass where the sessions that draft are in two groups: half of these, first come first.

    Rows without drafts wait for nobody.

    Args:
        waiting: rows in the order in which they came.
        sessions: all that run, whether they have a row now or not.
    """
    later = set(_drafted(waiting)[(_drafting(waiting, sessions) + 1) // 2 :])
    return [row for row in waiting if row not in later]


def is_turn(waiting: Sequence[Row], sessions: int) -> bool:
    """Whether half of the sessions that draft have come; arguments as for `turn`."""
    return len(_drafted(waiting)) >= max(_drafting(waiting, sessions) // 2, 1)


def _drafted(waiting: Sequence[Row]) -> list[Row]:
    return [row for row in waiting if row.draft.tokens]


def _drafting(waiting: Sequence[Row], sessions: int) -> int:
    """Of so many sessions, those that draft as far as is known: all but the ones that wait without a draft."""
    return sessions - len(waiting) + len(_drafted(waiting))


def level(wanted: Sequence[int], budget: int) -> int:
    """The greatest limit on each of the wanted numbers that keeps their sum within the budget."""
    left = budget
    for above, want in zip(range(len(wanted), 0, -1), sorted(wanted), strict=True):
        if want * above > left:
            return left // above
        left -= want
    return max(wanted, default=0)

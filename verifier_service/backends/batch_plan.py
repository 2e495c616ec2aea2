"""Rows that wait for the target, and the policy that divides the next pass among them. Pure functions."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import NamedTuple, overload

from torch import Tensor

from specdec.grammar.state import TokenMasks
from specdec.rules.draft import NO_DRAFT, Draft, Verdict
from specdec.sampling.distribution import History
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.scoring import score
from specdec.trees.tree import TreeDraft
from specdec.wire.features import Features
from specdec.wire.generation import GenerationCall

PIECE = 128
"""Most prompt tokens scored in one pass. Each takes a row of logits as wide as the vocabulary."""
_NO_HISTORY = History()
_LEVEL_SECONDS = 30.0
"""Seconds of waiting that equal one level of priority."""


class PromptScores:
    """Log probabilities of one prompt so far. A piece that is recomputed after preemption overwrites its values."""

    def __init__(self, prompt: Sequence[int], top: int) -> None:
        """Create the scores of a prompt's tokens except the first, each with the `top` most likely alternatives."""
        self._prompt = prompt
        self._top = top
        self._found: dict[int, TokenLogprobs] = {}

    @classmethod
    def of_call(cls, call: GenerationCall) -> "PromptScores | None":
        """Return empty scores for a call, or None if it requests none or resumes after its first round."""
        if call.prompt_logprobs is None or len(call.tokens) > call.prompt_len:
            return None
        return cls(call.tokens, call.prompt_logprobs)

    def scored(self, start: int, count: int) -> int:
        """Return how many of the `count` tokens from `start` on are followed by another prompt token."""
        return max(0, min(start + count, len(self._prompt) - 1) - start)

    def add(self, start: int, logits: Tensor) -> None:
        """Score the tokens that follow the positions from `start` on.

        Args:
            start: position of the token after which the first row of logits predicts.
            logits: logits after consecutive tokens from `start` on, [n, V].

        Raises:
            NoDistribution: a row is NaN or infinite.
        """
        tokens = self._prompt[start + 1 : start + 1 + len(logits)]
        self.fill(start, score(logits, tokens, self._top, ranked=True))

    def fill(self, start: int, found: Iterable[TokenLogprobs]) -> None:
        """Store the log probabilities of the tokens that follow the positions from `start` on."""
        self._found |= enumerate(found, start + 1)

    @property
    def all(self) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of all prompt tokens except the first. Raises KeyError if a piece is missing."""
        return tuple(self._found[index] for index in range(1, len(self._prompt)))


def rank(priority: int, arrival: float) -> float:
    """Return a generation's rank, lowest first: by arrival, where one level of priority equals 30 s of waiting.

    So no generation starves: one that arrived long enough ago precedes all new ones.

    Args:
        priority: priority level, 0 by default; lower levels go first.
        arrival: arrival time in seconds.
    """
    return arrival + _LEVEL_SECONDS * priority


class TokenPrefix(Sequence[int]):
    """The first tokens of a list that only grows. The successive rows of a sequence share one list.

    Copying the tokens for each row would take time in proportion to the context: 35 µs at 8,192 tokens.
    """

    __slots__ = ("_all", "_count")

    def __init__(self, tokens: list[int]) -> None:
        """Take a list that nothing else changes, with all its tokens."""
        self._all = tokens
        self._count = len(tokens)

    def followed_by(self, tokens: Sequence[int]) -> "TokenPrefix":
        """Return these tokens and more. Only the first call grows the shared list; a later one copies it."""
        grown = self._all if len(self._all) == self._count else self._all[: self._count]
        grown.extend(tokens)
        return TokenPrefix(grown)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            start, stop, step = place.indices(self._count)
            return self._all[start:stop:step] if step > 0 else [*self][place]
        if not -self._count <= place < self._count:
            raise IndexError(f"there are {self._count} tokens")
        return self._all[place % self._count]

    def __iter__(self) -> Iterator[int]:
        return islice(self._all, self._count)


@dataclass(frozen=True, slots=True)
class HeadUse:
    """Use of the target's draft head by a sequence."""

    follows: bool = False
    """Whether the head follows the sequence, so that it can draft."""
    gamma: int = 0
    """Number of tokens that the head drafts just before the pass of the row, which judges them."""
    siblings: bool = False
    """Whether the head drafts a second token for the first position, too."""

    def drafting(self, gamma: int, *, siblings: bool = False) -> "HeadUse":
        """Return the same use with γ tokens to draft."""
        return self if (gamma, siblings) == (self.gamma, self.siblings) else HeadUse(self.follows, gamma, siblings)


NO_HEAD = HeadUse()


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One request of a generation to the target.

    A row whose goal is all of its tokens gets a verdict on its draft. A row with a smaller goal is a prefill and gets
    none. A row with goal 0 requests admission and computes nothing.
    """

    call: GenerationCall
    kv_name: str
    """Name of the sequence's KV at the engine; unique in the process."""
    rank: float
    """Place in the queue, lowest first. The sequence with the greatest rank is preempted first."""
    limit: int
    """Longest length of the sequence, in tokens."""
    tokens: Sequence[int]
    """All committed tokens, at least one. Not changed while the row waits."""
    goal: int
    """Number of tokens from the first that must have KV."""
    draft: Draft | TreeDraft = NO_DRAFT
    prefilling: bool = False
    """Whether the draft is late or missing because its drafter was still reading the tokens."""
    grammar: TokenMasks | None = None
    """Grammar state of the session. While the row waits, only the model's thread uses it."""
    runs_ahead: bool = False
    """Whether a plain round may follow before the session requests it."""
    prefetched: bool = False
    """Whether the row started before its session requested it."""
    scores: PromptScores | None = None
    """Collects the log probabilities of the prompt, if the first round reports them."""
    head: HeadUse = NO_HEAD

    def successor(self, tokens: Sequence[int]) -> "Row":
        """Return the plain row that follows with these committed tokens, before the session requests it."""
        return Row(
            self.call, self.kv_name, self.rank, self.limit, tokens, len(tokens), runs_ahead=True, prefetched=True,
            head=self.head.drafting(0),
        )  # fmt: skip

    @property
    def history(self) -> History:
        """Prompt and output if the sampling parameters need them, else empty."""
        if not self.call.sampling.needs_history:
            return _NO_HISTORY
        prompt_len = self.call.prompt_len
        return History(self.call.tokens[:prompt_len], tuple(self.tokens[prompt_len:]))


class Gathers(Enum):
    """Policy for whether the next pass waits for a round that waits for its draft."""

    NOT = "not"
    """Never. A round that still waits when the next pass begins uses the drafts it has."""
    BRIEFLY = "briefly"
    """While all ready rows have drafts, and their total wait is less than a pass would cost the missing rows."""
    ALWAYS = "always"
    """While the round itself waits, that is, while waiting pays for the batch."""


@dataclass(frozen=True, slots=True)
class HeadDraft:
    """Draft that the target's head made for a row, just before the pass that judged it."""

    draft: Draft | TreeDraft
    """The draft; empty if the head could not draft."""
    seconds: float
    """Time in seconds that the pass waited for the drafts of all its rows."""


class Outcome(NamedTuple):
    """Verdict on a row, with the times of its pass."""

    verdict: Verdict
    started: float
    """Start time of the pass, by `time.perf_counter`."""
    seconds: float
    """Duration of the pass in seconds."""
    offered: int
    """Number of the row's drafts in the pass. A verdict on fewer means that the draft was unusable."""
    drafted: HeadDraft | None = None
    """Draft of the target's head in the pass; None if the row did not request one."""
    features: Features | None = None
    """Features of the row's tokens up to the last committed one but one, as far as they are new; None if there are
    none."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledChunk:
    """Part of a row that one pass computes."""

    row: Row
    start: int
    """Number of tokens that have KV before the pass."""
    count: int
    """Number of committed tokens that the pass computes."""
    most: int | None = None
    """Most drafts that the pass judges, from the first; None for all."""

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
        """Row with the drafts that this pass judges; None if it gives no verdict."""
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
        """Number of tokens, from the first of the chunk, whose next token is scored."""
        return 0 if self.row.scores is None else self.row.scores.scored(self.start, self.count)

    @property
    def length(self) -> int:
        """Number of tokens that have KV after the pass, including drafts."""
        return self.start + self.count + self.drafts


def plan(waiting: Sequence[tuple[Row, int]], chunk_tokens: int, draft_tokens: int) -> list[ScheduledChunk]:
    """Return the chunks of the next pass, in the order of `waiting`.

    Every decoding row takes part. If there are too many drafts in total, the longest are shortened. Rows with more
    than one token to compute share `chunk_tokens`. The first of them gets at least half, so that it always advances.
    The rest goes to the shortest, so that a short prompt does not wait for a long one. At most one scored prompt takes
    part, with a short piece.

    Args:
        waiting: rows in order of rank, each with its number of tokens that have KV, which is less than its goal.
        chunk_tokens: most prompt tokens of the pass, without the last token of each decoding session.
        draft_tokens: most drafts of all sessions together.
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
    """Yield the rows, with at most one whose prompt is scored: the first."""
    scoring = False
    for row, start in waiting:
        if row.scores is None or not scoring:
            yield row, start
        scoring = scoring or row.scores is not None


def turn(waiting: Sequence[Row], sessions: int) -> list[Row]:
    """Return the rows of the next pass with two groups: the first half of the drafting sessions by arrival.

    Rows without drafts always take part.

    Args:
        waiting: rows in order of arrival.
        sessions: number of running sessions, with or without a row.
    """
    later = set(_drafted(waiting)[(_drafting(waiting, sessions) + 1) // 2 :])
    return [row for row in waiting if row not in later]


def is_turn(waiting: Sequence[Row], sessions: int) -> bool:
    """Whether half of the drafting sessions have a drafted row; arguments as for `turn`."""
    return len(_drafted(waiting)) >= max(_drafting(waiting, sessions) // 2, 1)


def _drafted(waiting: Sequence[Row]) -> list[Row]:
    return [row for row in waiting if row.draft.tokens]


def _drafting(waiting: Sequence[Row], sessions: int) -> int:
    """Return the number of drafting sessions: all sessions except those that wait without a draft."""
    return sessions - len(waiting) + len(_drafted(waiting))


def level(wanted: Sequence[int], budget: int) -> int:
    """Return the greatest limit on each wanted number that keeps their sum within the budget."""
    left = budget
    for above, want in zip(range(len(wanted), 0, -1), sorted(wanted), strict=True):
        if want * above > left:
            return left // above
        left -= want
    return max(wanted, default=0)

"""Checks of drafts: they follow the committed tokens, fit into the room left, and resume after a pause."""

from collections.abc import Sequence
from unittest.mock import patch

from specdec.rules.draft import Draft
from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode
from specdec.wire.draft import DraftTokens
from specdec.wire.tokens import tokens_from_bytes
from tests.conformance.checks.check import Check, count
from tests.conformance.checks.served import Workload
from tests.conformance.served_pair import Done
from tests.conformance.small_pair import PROMPT, small
from verifier_service.drafts.draft_buffer import MOST_DRAFTS
from verifier_service.drafts.session_drafts import RemoteDrafts
from verifier_service.passes import sequence

LENGTH = 12
PAUSES = 3
"""A committed length divisible by this is followed by a round without drafts."""


def overshooting_rounds() -> float:
    """Count rounds with drafts beyond the room left."""
    limit = len(PROMPT) + 6
    rounds = [each for done in Workload(Mode.REJECTION, 60, gammas=(8,), length=6).run() for each in done.rounds]
    return sum(each.base_len + len(each.draft_tokens) // 4 >= limit for each in rounds)


def strayed_drafts(sessions: int, ahead: int) -> float:
    """Count draft tokens that differ from the prediction of the drafter's model at their prefix.

    With one candidate, a coupled drafter proposes its argmax for any noise.
    """
    return sum(map(_strayed, _sure(sessions, ahead)))


def late_drafts() -> float:
    """Count draft tokens that stray if drafts of a rejected prefix arrive after every verdict."""
    commit = RemoteDrafts.commit

    def then_late(drafts: RemoteDrafts, tokens: Sequence[int], judged: int, gamma: int) -> None:
        committed, drafted = drafts._buffer.committed, drafts._buffer.take(LENGTH).tokens
        commit(drafts, tokens, judged, gamma)
        behind, late = drafted[: len(tokens)], drafted[len(tokens) :]
        if behind != tuple(tokens):
            # The largest number that a round can want: a verifier that accepts them waits for no others.
            drafts.drafted(_chunk(drafts, committed + behind, (late * LENGTH)[:MOST_DRAFTS]))

    with patch.object(RemoteDrafts, "commit", then_late):
        return strayed_drafts(50, ahead=2)


def lost_drafts() -> float:
    """Count rounds that wanted drafts and had none, and drafts that strayed, with rounds of γ = 0 in between."""

    def gamma(own: sequence.Sequence) -> int:
        committed = len(own._tokens)
        return min(0 if committed % PAUSES == 0 else 2, own._limit - committed - 1)

    with patch.object(sequence.Sequence, "_next_gamma", gamma):
        generations = _sure(40, ahead=2)
    return sum(_strayed(done) + sum(bool(each.fallback_reason) for each in done.rounds) for done in generations)


def _chunk(drafts: RemoteDrafts, prefix: tuple[int, ...], tokens: tuple[int, ...]) -> DraftTokens:
    return DraftTokens(drafts._call.session_id, drafts.epoch, len(prefix), PrefixHash(prefix).value, Draft(tokens))


def _sure(sessions: int, ahead: int) -> list[Done]:
    return Workload(Mode.COUPLED, sessions, gammas=(3, 2), length=LENGTH, support=1, ahead=ahead).run()


def _strayed(done: Done) -> int:
    strayed = 0
    for each in done.rounds:
        committed = PROMPT + done.tokens[: each.base_len - len(PROMPT)]
        draft = tokens_from_bytes(each.draft_tokens)
        strayed += sum(token != best for token, best in zip(draft, _best(committed, draft), strict=True))
    return strayed


def _best(committed: tuple[int, ...], draft: Sequence[int]) -> list[int]:
    """Return the drafter's argmax at each position of the draft."""
    places = [(*committed, *draft[:step]) for step in range(len(draft))]
    return [int(small().plain_drafter.logits([place]).argmax()) for place in places]


CHECKS: tuple[Check, ...] = (
    count("room of the last round", overshooting_rounds, crosses_a_border=True),
    count("late drafts of another prefix", late_drafts, crosses_a_border=True),
    count("drafts follow their prefix, none ahead", lambda: strayed_drafts(40, ahead=0), crosses_a_border=True),
    count("drafts after rounds without", lost_drafts, crosses_a_border=True),
)

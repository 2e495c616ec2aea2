"""Bugs in drafts and in the distributions sent with them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdec.rules.draft import Draft, SparseProbs, Verdict
from specdec.rules.prefix import PrefixHash
from specdec.rules.proposal import Proposal, propose
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from tests.conformance.bugs.bug import Bug, Law, everywhere
from tests.conformance.sampled_chain import Service
from tests.conformance.table_models import Context
from tests.support.draft_laws import compress

Propose = Callable[[Mode, Tensor, Sequence[int], Sequence[int], int, Sequence[int] | None], Proposal]


def planted_propose(patch: pytest.MonkeyPatch, wrong: Propose) -> None:
    """Replace `propose` in the modes that send q̂."""

    def planted(
        mode: Mode,
        q: Tensor,
        seeds: Sequence[int],
        positions: Sequence[int],
        k: int,
        starts: Sequence[int] | None = None,
    ) -> Proposal:
        if mode is Mode.COUPLED:
            return propose(mode, q, seeds, positions, k, starts)
        return wrong(mode, q, seeds, positions, k, starts)

    everywhere(patch, propose, planted)


def raw_q(patch: pytest.MonkeyPatch) -> None:
    """The drafter sends the verifier q before truncation."""

    def wrong(*arguments: object) -> Proposal:
        tokens, _ = propose(*arguments)  # type: ignore[arg-type]
        q: Tensor = arguments[1]  # type: ignore[assignment]
        return tokens, compress(q, q.shape[1])

    planted_propose(patch, wrong)


def truncated_after_the_draw(patch: pytest.MonkeyPatch) -> None:
    """The draft is drawn from all of q and q̂ is the truncated q. A draft outside q̂ is sent with all of q."""

    def wrong(
        mode: Mode, q: Tensor, seeds: Sequence[int], at: Sequence[int], k: int, starts: Sequence[int] | None
    ) -> Proposal:
        tokens, whole = propose(mode, q, seeds, at, q.shape[1], starts)
        return tokens, [
            short if token in short.ids.tolist() else full
            for token, short, full in zip(tokens, compress(q, k), whole, strict=True)
        ]

    planted_propose(patch, wrong)


def other_precision(patch: pytest.MonkeyPatch) -> None:
    """The draft is drawn from full-precision q̂, and q̂ is sent in half precision."""

    def wrong(*arguments: object) -> Proposal:
        tokens, sent = propose(*arguments)  # type: ignore[arg-type]
        return tokens, [replace(each, weights=each.weights.half().clamp_max(65504).long()) for each in sent]

    planted_propose(patch, wrong)


def argmax_with_its_q(patch: pytest.MonkeyPatch) -> None:
    """The draft is q's argmax but is verified as a sample from q."""

    def wrong(
        mode: Mode, q: Tensor, seeds: Sequence[int], at: Sequence[int], k: int, starts: Sequence[int] | None
    ) -> Proposal:
        return q.argmax(1).tolist(), compress(q, k)

    planted_propose(patch, wrong)


def uniform_q_on_a_miss(patch: pytest.MonkeyPatch) -> None:
    """A drafter without an answer sends token 0 and labels it a uniform draw."""

    def wrong(*arguments: object) -> Proposal:
        tokens, sent = propose(*arguments)  # type: ignore[arg-type]
        q: Tensor = arguments[1]  # type: ignore[assignment]
        flat = SparseProbs(torch.arange(q.shape[1]), torch.ones(q.shape[1], dtype=torch.int64))
        missed = (q.argmax(1) < 2).tolist()
        return [0 if miss else token for token, miss in zip(tokens, missed, strict=True)], [
            flat if miss else each for each, miss in zip(sent, missed, strict=True)
        ]

    planted_propose(patch, wrong)


def q_of_another_position(patch: pytest.MonkeyPatch) -> None:
    """The distributions of a draft are shifted by one position."""

    def planted(mode: Mode, p: Tensor, drafts: Sequence[Draft], *others: object) -> list[Verdict]:
        moved = [Draft(draft.tokens, draft.probs[-1:] + draft.probs[:-1]) for draft in drafts]
        return verify(mode, p, moved, *others)  # type: ignore[arg-type]

    everywhere(patch, verify, planted)


def low_confidence_dropped(patch: pytest.MonkeyPatch) -> None:
    """A draft ends before the first token with a low probability in q̂, after that token has been drawn."""
    cut = Draft.cut

    def planted(draft: Draft, gamma: int) -> Draft:
        kept = 0
        for token, law in zip(draft.tokens[:gamma], draft.probs, strict=False):
            if float(law.weights[law.ids == token].sum() / law.weights.sum()) < 0.5:
                break
            kept += 1
        return cut(draft, kept)

    patch.setattr(Draft, "cut", planted)


def numbers_of_the_chain_before(patch: pytest.MonkeyPatch) -> None:
    """In block mode a new chain reuses the random numbers of the rejected chain."""
    _generated(patch, chain_starts=False)


def drafts_unseen_by_penalties(patch: pytest.MonkeyPatch) -> None:
    """Penalties see the committed output only."""
    _generated(patch, penalties_see_drafts=False)


def _generated(patch: pytest.MonkeyPatch, **flags: bool) -> None:
    generate = Service.generate

    def planted(service: Service, *given: int, **named: int) -> list[Context]:
        return generate(replace(service, **flags), *given, **named)  # type: ignore[arg-type]

    patch.setattr(Service, "generate", planted)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Every prefix has the same hash, so late drafts of another prefix are accepted into the buffer."""
    patch.setattr(PrefixHash, "value", 0)


BUGS = (
    Bug("raw q sent", Law.Q_AS_SAMPLED, raw_q, ("enumerated rejection", "served rejection", "served block")),
    Bug(
        "truncated after the draw",
        Law.Q_AS_SAMPLED,
        truncated_after_the_draw,
        ("enumerated rejection", "served rejection"),
    ),
    Bug("drawn in one precision, sent in another", Law.Q_AS_SAMPLED, other_precision, ("enumerated rejection",)),
    Bug("argmax draft with its q", Law.POINT_MASS, argmax_with_its_q, ("enumerated rejection",)),
    Bug("token 0 with a uniform q on a miss", Law.Q_AS_SAMPLED, uniform_q_on_a_miss, ("enumerated rejection",)),
    Bug("q̂ of another position", Law.Q_AS_SAMPLED, q_of_another_position, ("enumerated block",)),
    Bug("low-confidence token dropped", Law.USE, low_confidence_dropped, ("sampled rejection", "simulated rejection")),
    Bug(
        "chain drawn with the numbers of the one before",
        Law.BLOCK,
        numbers_of_the_chain_before,
        ("sampled block, rejecting",),
    ),
    Bug("penalties blind to drafts", Law.ONE_DISTRIBUTION, drafts_unseen_by_penalties, ("sampled penalties",)),
    Bug("no fence on late drafts", Law.KV, no_fence, ("late drafts of another prefix",), ("simulated rejection",)),
)

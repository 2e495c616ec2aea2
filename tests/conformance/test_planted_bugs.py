"""Negative controls: each known way to break exactness is planted in the real code, and the G-test must then fail.

Every planted bug must be rejected at p < 1e-9 with 4,000 sessions; on these models the sound code passes at p >= 1e-3.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specdec import verification
from specdec.coupling import coupled
from specdec.params import Mode, SamplingParams
from specdec.proposal import Proposal, compress, propose
from specdec.rng import Lane, uniform
from specdec.sampling import sample
from tests.conformance import sampled
from tests.conformance.sampled import PROMPT, Service, g_test
from tests.conformance.tables import Context, TableModel, joint

SESSIONS = 4_000
LENGTH = 4
CAUGHT = 1e-9
PENALTIES = SamplingParams(presence_penalty=0.8, frequency_penalty=0.4, repetition_penalty=1.3)

Uniform = Callable[..., Tensor]


class Flat(TableModel):
    """A model with the same distribution after every context: what is drawn twice from one number shows most."""

    def __init__(self, *probabilities: float) -> None:
        super().__init__(len(probabilities), seed=0)
        self._logits = torch.tensor(probabilities, dtype=torch.float64).log()

    def logits(self, context: Context) -> Tensor:
        return self._logits


def p_value(service: Service) -> float:
    outputs = service.generate(SESSIONS, LENGTH)
    return g_test(outputs, joint(service.target, service.params, PROMPT, LENGTH), service.target.vocab_size)


def service(mode: Mode, **changes: object) -> Service:
    """A drafter whose third token is cut off by a support of two."""
    return Service(mode, SamplingParams(), Flat(0.5, 0.3, 0.2), Flat(0.3, 0.3, 0.4), **changes)  # type: ignore[arg-type]


def rejecting_service(**changes: object) -> Service:
    """Block verification that often rejects a whole draft, so that the next round drafts the same positions again."""
    return Service(Mode.BLOCK, SamplingParams(), Flat(0.5, 0.5), Flat(0.8, 0.2), gammas=(3,), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
def test_the_sound_code_passes_on_these_models(mode: Mode) -> None:
    assert p_value(service(mode)) >= 1e-3


def test_the_sound_code_passes_when_whole_drafts_are_rejected() -> None:
    assert p_value(rejecting_service()) >= 1e-3


def verified_against_raw_q(
    mode: Mode, q: Tensor, seeds: Sequence[int], positions: Sequence[int], k: int, starts: Sequence[int]
) -> Proposal:
    tokens, _ = propose(mode, q, seeds, positions, k, starts)
    return tokens, compress(q, q.shape[1])


def truncated_after_the_draw(
    mode: Mode, q: Tensor, seeds: Sequence[int], positions: Sequence[int], k: int, starts: Sequence[int]
) -> Proposal:
    tokens, whole = propose(mode, q, seeds, positions, q.shape[1], starts)
    sent = compress(q, k)
    return tokens, [
        short if token in short.ids.tolist() else full for token, short, full in zip(tokens, sent, whole, strict=True)
    ]


@pytest.mark.parametrize("planted", [verified_against_raw_q, truncated_after_the_draw], ids=lambda bug: bug.__name__)
@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_a_q_that_is_not_the_one_sampled(
    mode: Mode, planted: Callable[..., Proposal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled, "propose", planted)
    assert p_value(service(mode)) < CAUGHT


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_a_residual_that_is_not_taken(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "residual", lambda p, scale, ids, q: p)
    assert p_value(service(mode)) < CAUGHT


def test_a_block_verdict_that_stops_at_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "block", lambda h, eta: (eta < h).cumprod(1).sum(1))
    assert p_value(service(Mode.BLOCK, support=3)) < CAUGHT


def test_a_redraw_after_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    def redrawn(
        p: Tensor, drafts: Sequence[Sequence[int]], seeds: Sequence[int], positions: Sequence[int]
    ) -> list[tuple[int, ...]]:
        emitted = coupled(p, drafts, seeds, positions)
        at = [position + len(tokens) for position, tokens in zip(positions, emitted, strict=True)]
        first = torch.tensor([len(draft) + 1 for draft in drafts]).cumsum(0) - 1
        rows = first - torch.tensor([len(d) + 1 - len(tokens) for d, tokens in zip(drafts, emitted, strict=True)])
        again = sample(p[rows], uniform(seeds, at, Lane.BONUS)).tolist()
        return [
            tokens if len(tokens) > len(draft) else (*tokens[:-1], token)
            for tokens, draft, token in zip(emitted, drafts, again, strict=True)
        ]

    monkeypatch.setattr(verification, "coupled", redrawn)
    assert p_value(service(Mode.COUPLED)) < CAUGHT


def sharing(one: Lane, other: Lane, back: int = 0) -> Uniform:
    """A `uniform` whose lane `one` reads lane `other`, `back` positions earlier."""

    def shared(
        seeds: Sequence[int],
        positions: Sequence[int],
        lane: Lane,
        device: torch.device | str = "cpu",
        starts: Sequence[int] | None = None,
    ) -> Tensor:
        if lane is one:
            return uniform(seeds, [position - back for position in positions], other, device)
        return uniform(seeds, positions, lane, device, starts)

    return shared


@pytest.mark.parametrize(
    "planted",
    [sharing(Lane.ACCEPT, Lane.DRAFT), sharing(Lane.RESIDUAL, Lane.ACCEPT), sharing(Lane.BONUS, Lane.ACCEPT, back=1)],
    ids=["accept reads draft", "residual reads accept", "bonus reads the last accept"],
)
def test_a_lane_that_is_shared(planted: Uniform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "uniform", planted)
    assert p_value(service(Mode.REJECTION)) < CAUGHT


def test_penalties_that_do_not_see_the_drafts_in_flight() -> None:
    blind = Service(Mode.REJECTION, PENALTIES, TableModel(3, seed=1), TableModel(3, seed=2), penalties_see_drafts=False)
    assert p_value(blind) < CAUGHT


def test_block_drafts_drawn_from_the_numbers_of_the_chain_before() -> None:
    assert p_value(rejecting_service(chain_starts=False)) < CAUGHT


def test_block_verdicts_that_reuse_the_numbers_of_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "uniform", lambda *arguments: uniform(*arguments[:4]))
    assert p_value(rejecting_service()) < CAUGHT

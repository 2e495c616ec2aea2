"""Negative controls: each known way to break exactness is planted in the running services, and the G-test must see it.

A bug must be rejected at the p at which sound code would be (1e-6) in every mode named; the table at the end of the
run says which test caught which bug.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import verifier_service.app
import verifier_service.verifier
from drafter_service.drafters import model as drafting
from specdec import verification
from specdec.coupling import coupled
from specdec.draft import Draft, Verdict
from specdec.engine import Engine
from specdec.params import Mode, SamplingParams
from specdec.proposal import Proposal, compress, propose
from specdec.rng import Lane, uniform
from specdec.sampling import History
from specdec.verification import verify
from tests.conformance.conftest import Pair
from tests.conformance.law import p_value
from tests.conformance.served import Ask, generate, pair
from tests.conformance.test_served_law import AHEAD, AT_ONCE, END, LENGTH, P_VALUE, PROMPT
from verifier_service.app import load_engine
from verifier_service.config import VerifierSettings
from verifier_service.plan import Row

PLAIN = SamplingParams()
PENALTIES = SamplingParams(presence_penalty=2.0, frequency_penalty=1.0)
RATIO = (Mode.REJECTION, Mode.BLOCK)
GAMMAS = (1, 2, 3)
Plant = Callable[[pytest.MonkeyPatch], None]


def raw_q_sent(patch: pytest.MonkeyPatch) -> None:
    """The verifier is told the q before truncation."""

    def planted(
        mode: Mode,
        q: Tensor,
        seeds: Sequence[int],
        positions: Sequence[int],
        k: int,
        starts: Sequence[int] | None = None,
    ) -> Proposal:
        tokens, sampled = propose(mode, q, seeds, positions, k, starts)
        return tokens, compress(q, q.shape[1]) if sampled else []

    patch.setattr(drafting, "propose", planted)


def truncated_after_the_draw(patch: pytest.MonkeyPatch) -> None:
    """The draft is drawn from all of q, and q̂ is what is left of it; a draft that q̂ lacks is sent with all of q."""

    def planted(
        mode: Mode,
        q: Tensor,
        seeds: Sequence[int],
        positions: Sequence[int],
        k: int,
        starts: Sequence[int] | None = None,
    ) -> Proposal:
        tokens, whole = propose(mode, q, seeds, positions, q.shape[1], starts)
        short = compress(q, k) if whole else []
        return tokens, [
            cut if token in cut.ids.tolist() else full for token, cut, full in zip(tokens, short, whole, strict=False)
        ]

    patch.setattr(drafting, "propose", planted)


def bonus_from_the_row_before(patch: pytest.MonkeyPatch) -> None:
    """After a full acceptance the token is drawn from p at the last draft's own position."""

    def planted(
        mode: Mode, p: Tensor, drafts: Sequence[Draft], seeds: Sequence[int], positions: Sequence[int], _: object
    ) -> list[Verdict]:
        sizes = torch.tensor([len(draft.tokens) + 1 for draft in drafts])
        last = (sizes.cumsum(0) - 1)[sizes > 1]
        p = p.clone()
        p[last] = p[last - 1]
        return verify(mode, p, drafts, seeds, positions)

    patch.setattr(verifier_service.verifier, "verify", planted)


def penalties_blind_to_drafts(patch: pytest.MonkeyPatch) -> None:
    """Penalties see the committed output only."""

    def planted(row: Row) -> Iterator[History]:
        return iter([row.history] * (len(row.draft.tokens) + 1))

    patch.setattr(verifier_service.verifier, "_histories", planted)


def kv_one_short_after_full_acceptance(patch: pytest.MonkeyPatch) -> None:
    """The last accepted draft has no KV in the target, and what follows takes its place."""

    def planted(settings: VerifierSettings) -> Engine:
        engine = load_engine(settings)
        truncate = engine.truncate

        def short(session: str, length: int) -> None:
            held = engine.length(session)
            truncate(session, min(length, held) - (length >= held))

        engine.truncate = short  # type: ignore[method-assign]
        return engine

    patch.setattr(verifier_service.app, "load_engine", planted)


def kv_of_rejected_drafts_kept(patch: pytest.MonkeyPatch) -> None:
    """Nothing is rolled back: later tokens attend to drafts that were rejected."""

    def planted(settings: VerifierSettings) -> Engine:
        engine = load_engine(settings)
        admit = engine.admit
        engine.truncate = lambda session, length: None  # type: ignore[method-assign]
        engine.admit = lambda session, capacity: admit(session, capacity + 16)  # type: ignore[method-assign]
        return engine

    patch.setattr(verifier_service.app, "load_engine", planted)


def no_residual(patch: pytest.MonkeyPatch) -> None:
    """After a rejection the token is drawn from p."""
    patch.setattr(verification, "residual", lambda p, scale, ids, q: p)


def accepted_by_p_alone(patch: pytest.MonkeyPatch) -> None:
    """A draft is kept with probability p(x) instead of p(x)/q(x)."""
    patch.setattr(verification, "rejection", lambda p_x, q_x, u, lenience: (u < p_x).cumprod(1).sum(1))


def accept_lane_reads_draft_lane(patch: pytest.MonkeyPatch) -> None:
    """The uniform that drew a draft also judges it."""

    def planted(
        seeds: Sequence[int],
        positions: Sequence[int],
        lane: Lane,
        device: torch.device | str = "cpu",
        starts: Sequence[int] | None = None,
    ) -> Tensor:
        return uniform(seeds, positions, Lane.DRAFT if lane is Lane.ACCEPT else lane, device, starts)

    patch.setattr(verification, "uniform", planted)


def draft_emitted_after_a_mismatch(patch: pytest.MonkeyPatch) -> None:
    """Coupled mode keeps the draft that differs instead of the target's own draw."""

    def planted(
        p: Tensor, drafts: Sequence[Sequence[int]], seeds: Sequence[int], positions: Sequence[int]
    ) -> list[tuple[int, ...]]:
        emitted = coupled(p, drafts, seeds, positions)
        return [
            tokens if len(tokens) > len(draft) else tuple(draft[: len(tokens)])
            for tokens, draft in zip(emitted, drafts, strict=True)
        ]

    patch.setattr(verification, "coupled", planted)


@dataclass(frozen=True)
class Control:
    """A bug, where it shows, and in how many sessions."""

    plant: Plant
    modes: tuple[Mode, ...]
    sessions: int
    params: SamplingParams = PLAIN
    gammas: tuple[int, ...] = GAMMAS

    def __str__(self) -> str:
        return self.plant.__name__.replace("_", " ")


CONTROLS = [
    Control(raw_q_sent, RATIO, 300),
    Control(truncated_after_the_draw, RATIO, 700),
    Control(bonus_from_the_row_before, (*RATIO, Mode.COUPLED), 500),
    Control(penalties_blind_to_drafts, (*RATIO, Mode.COUPLED), 300, PENALTIES),
    Control(kv_one_short_after_full_acceptance, (Mode.REJECTION, Mode.COUPLED), 1_000, gammas=(1,)),
    Control(kv_of_rejected_drafts_kept, (Mode.REJECTION, Mode.COUPLED), 200),
    Control(no_residual, RATIO, 450),
    Control(accepted_by_p_alone, (Mode.REJECTION,), 800),
    Control(accept_lane_reads_draft_lane, RATIO, 450),
    Control(draft_emitted_after_a_mismatch, (Mode.COUPLED,), 150),
]


@pytest.mark.parametrize("control", CONTROLS, ids=str)
def test_a_planted_bug_is_caught(
    control: Control, small: Pair, monkeypatch: pytest.MonkeyPatch, note: Callable[[str], None]
) -> None:
    control.plant(monkeypatch)
    found = p_values(control, small)
    note(f"{control!s:36} " + ", ".join(f"{mode} p = {p:.1g}" for mode, p in found.items()))
    assert max(found.values()) < P_VALUE


def p_values(control: Control, small: Pair) -> dict[Mode, float]:
    """The p-value of the served law in each of the control's modes."""
    work = [
        (
            mode,
            Ask(
                mode,
                replace(control.params, seed=number * len(control.modes) + index),
                control.gammas[number % len(control.gammas)],
                PROMPT,
                LENGTH,
                (END,),
            ),
        )
        for index, mode in enumerate(control.modes)
        for number in range(control.sessions)
    ]
    random.Random(1).shuffle(work)

    async def run() -> list[tuple[int, ...]]:
        async with pair(small.target, small.drafter, support=2, ahead=AHEAD) as client:
            return [done.tokens for done in await generate(client, [ask for _, ask in work], AT_ONCE)]

    outputs: dict[Mode, list[tuple[int, ...]]] = {mode: [] for mode in control.modes}
    for (mode, _), tokens in zip(work, asyncio.run(run()), strict=True):
        outputs[mode].append(tokens)
    law = small.plain.law(control.params, PROMPT, LENGTH, END)
    return {mode: p_value(tokens, law) for mode, tokens in outputs.items()}

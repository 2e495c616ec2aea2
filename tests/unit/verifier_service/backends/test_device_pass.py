"""A pass on a device other than the host: verdicts match the host's to the bit, with one device sync for them all."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdec.engine import Chunk
from specdec.errors import InternalError, NoDistribution
from specdec.rules import verification
from specdec.rules.acceptance import Rest
from specdec.rules.draft import NO_DRAFT, Draft, Verdict
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from tests.support.device_syncs import device_syncs
from tests.unit.verifier_service.verifier_fakes import VOCABULARY, TableEngine, make_row, point_mass
from verifier_service.backends.batch_plan import Row, ScheduledChunk
from verifier_service.backends.target_pass import Result, verify_batch

TOKENS = (9, 4, 7, 9, 3)
PROMPT_LEN = 3
PARAMS = {
    "T=1": SamplingParams(),
    "T=0": SamplingParams(temperature=0.0),
    "top-k": SamplingParams(temperature=0.7, top_k=5),
    "top-p": SamplingParams(temperature=1.3, top_p=0.8),
    "min-p": SamplingParams(min_p=0.1, top_k=9, top_p=0.95),
    "penalties": SamplingParams(presence_penalty=0.6, frequency_penalty=0.2, repetition_penalty=1.3),
    "masks": SamplingParams(allowed_token_ids=tuple(range(1, 12)), banned_token_ids=(5,), logit_bias={3: 1.0}),
    "end": SamplingParams(temperature=0.0, min_tokens=4, end_token_ids=(0, 2), presence_penalty=0.4),
}
MODES = [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED, Mode.OFF]


class RandomEngine(TableEngine):
    """Draws logits for each session and length, and leaves them on a device."""

    def __init__(self, device: torch.device | str, rows: Sequence[Row]) -> None:
        super().__init__(room=10_000)
        self.device = torch.device(device)
        for row in rows:
            self.admit(row.kv_name, 50)
            self.kv[row.kv_name] = list(row.tokens[:-1])

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        logits = super().forward(chunks)
        known = logits.isfinite().all(1, keepdim=True)
        made = [_logits(chunk.session, len(self.kv[chunk.session]), chunk.logits) for chunk in chunks]
        return torch.where(known, torch.cat(made), logits).to(self.device, non_blocking=True)


def _logits(session: str, length: int, count: int) -> Tensor:
    seed = sum(map(ord, session)) * 1000 + length
    return 2 * torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def drafted(mode: Mode, gamma: int, session: str) -> Draft:
    """Draw drafts from the target's distribution without parameters, mixed with another one."""
    if mode is Mode.OFF or gamma == 0:
        return NO_DRAFT
    q = (_logits(session, len(TOKENS) + gamma, gamma + 1)[:gamma] + 0.3 * _logits("q", gamma, gamma)).softmax(-1)
    at, seed = [len(TOKENS) + step for step in range(gamma)], int(session[1:])
    tokens, probs = propose(mode, q, [seed] * gamma, at, 6, starts=[len(TOKENS)] * gamma)
    return Draft(tuple(tokens), tuple(probs))


def a_row(kv_name: str, draft: Draft, sampling: SamplingParams, speculation: Speculation) -> Row:
    """Return a row whose prompt is the first three of its tokens."""
    return make_row(kv_name, TOKENS, draft=draft, prompt_len=PROMPT_LEN, sampling=sampling, speculation=speculation)


def mixed(modes: Sequence[Mode] = MODES, params: Sequence[SamplingParams] = tuple(PARAMS.values())) -> list[Row]:
    """Return rows of each mode with each of the parameters, drafts of 0 to 5 tokens, some of them lenient."""
    rows = []
    for number, (mode, each) in enumerate((mode, each) for mode in modes for each in params):
        lenience = 0.4 if mode is Mode.REJECTION and number % 3 == 0 else 1.0
        draft = drafted(mode, number % 6, f"s{number}")
        rows.append(a_row(f"s{number}", draft, replace(each, seed=number), Speculation(mode, lenience=lenience)))
    return rows


def judged(device: torch.device | str, rows: Sequence[Row]) -> list[Result]:
    return verify_batch(RandomEngine(device, rows), [ScheduledChunk(row, row.goal - 1, 1) for row in rows])


def without_greedy_overlaps(results: Sequence[Result], rows: Sequence[Row]) -> list[Result]:
    """Return the results as a CPU gives them, which reads no distribution of an exact row at temperature 0."""
    greedy = [row.call.sampling.temperature == 0.0 and not row.call.speculation.lossy for row in rows]
    return [
        result._replace(overlaps=()) if certain and isinstance(result, Verdict) else result
        for result, certain in zip(results, greedy, strict=True)
    ]


CASES = {
    "everything": mixed(),
    **{f"{mode}": mixed([mode]) for mode in MODES},
    **{name: mixed(params=[params]) for name, params in PARAMS.items()},
    "no drafts": [replace(row, draft=NO_DRAFT) for row in mixed()],
}


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
def test_a_pass_looks_once_whatever_is_in_it(rows: list[Row], device: torch.device) -> None:
    with device_syncs(device) as seen:
        there = judged(device, rows)
    assert len(seen) == 1, seen
    if device.type == "lazy":
        assert without_greedy_overlaps(there, rows) == judged("cpu", rows)


def test_some_drafts_are_kept_and_some_are_not() -> None:
    for mode in MODES[:3]:
        kept = [result.accepted for result in judged("cpu", mixed([mode])) if isinstance(result, Verdict)]
        assert min(kept) == 0 < 2 <= max(kept)


def test_log_probabilities_are_one_sync_more(device: torch.device) -> None:
    rows = [replace(row, call=replace(row.call, logprobs=number % 3)) for number, row in enumerate(mixed())]
    with device_syncs(device) as seen:
        there = judged(device, rows)
    assert len(seen) == 2, seen
    if device.type == "lazy":
        assert without_greedy_overlaps(there, rows) == judged("cpu", rows)


PLANTS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda p: p[0, 0].item(),
    "bool": lambda p: bool((p >= 0).all()),
    "mask": lambda p: p[p > 0],
    "rows": lambda p: p[[0]],
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_sync_planted_in_a_pass_is_counted(
    plant: Callable[[Tensor], object], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = verification.judge

    def planted(mode: Mode, p: Tensor, *rest: object) -> tuple[Tensor, Rest]:
        plant(p)
        return judge(mode, p, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(verification, "judge", planted)
    with device_syncs(device) as seen:
        judged(device, mixed([Mode.REJECTION]))
    assert len(seen) == 2


@pytest.mark.parametrize("name", ["T=0", "min-p", "penalties"])
def test_a_row_without_a_distribution_fails_alone(name: str, device: torch.device) -> None:
    rows = mixed(params=[PARAMS[name]])
    engine = RandomEngine(device, rows)
    engine.nan |= {"s1", "s2"}
    results = verify_batch(engine, [ScheduledChunk(row, row.goal - 1, 1) for row in rows])
    for row, result in zip(rows, results, strict=True):
        assert isinstance(result, NoDistribution) == (row.kv_name in engine.nan)


def test_a_row_whose_ids_are_all_masked_fails_alone_and_says_so(device: torch.device) -> None:
    nothing = SamplingParams(banned_token_ids=tuple(range(VOCABULARY)))
    rows = [*mixed(), a_row("masked", point_mass(1), nothing, Speculation())]
    *good, blocked = judged(device, rows)
    assert isinstance(blocked, NoDistribution)
    assert not any(isinstance(result, InternalError) for result in good)


@pytest.mark.parametrize("bad", [-0.5, float("inf")])
def test_a_p_that_is_broken_is_named(bad: float, device: torch.device) -> None:
    p = probabilities(torch.zeros(3, 4), [SamplingParams()] * 3, [History()] * 3)
    p[2, 1] = bad
    with pytest.raises(InternalError, match=r"\[2\]") as error:
        verification.verify(Mode.REJECTION, p.to(device), [NO_DRAFT] * 3, [0] * 3, [0] * 3)
    assert not isinstance(error.value, NoDistribution)

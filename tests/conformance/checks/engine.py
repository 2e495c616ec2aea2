"""Checks of the engine: greedy tokens of plain `transformers` under rollback, and the state after a failed pass."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from specdec.engine import NativeEngine
from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall
from tests.conformance.checks.check import Check, count
from tests.conformance.greedy_identity import answers, differing
from tests.conformance.model_folders import root
from tests.conformance.small_pair import PROMPT, VOCAB_SIZE, small
from tests.support.tiny_models import make_tiny_model
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import Row, ScheduledChunk

PADDING = 7
"""Rows of the models' matrices beyond the ids of their tokenizers."""
SESSIONS = 16


@cache
def tiny(architecture: str) -> Path:
    """Return the folder of a three-layer model of that architecture."""
    return make_tiny_model(root() / architecture, architecture, seed=1, layers=3, padding=PADDING)


@cache
def plain(architecture: str) -> dict[str, list[int]]:
    """Return the greedy tokens that transformers generates."""
    return answers(tiny(architecture))


def wrong_tokens(architecture: str) -> float:
    """Count greedy tokens that differ from those of transformers."""
    expected = plain(architecture)
    engine = NativeEngine.load(tiny(architecture), dtype="float32", device="cpu", kv_bytes=1 << 22, threads=1)
    return differing(engine, expected)


def wrong_after_a_failure() -> float:
    """Count verdicts and lengths that change because the drafts of every second row cannot be judged."""
    flat = SparseProbs(torch.arange(VOCAB_SIZE), torch.ones(VOCAB_SIZE, dtype=torch.int64))
    elsewhere = SparseProbs(torch.tensor([0]), torch.tensor([9]))
    rows = [_row(seed, Draft((seed % 7, 1), (flat, flat))) for seed in range(SESSIONS)]
    bad = Draft((1, 1), (elsewhere, elsewhere))
    alone = [_judged([replace(row, draft=NO_DRAFT) if at % 2 == 0 else row])[0] for at, row in enumerate(rows)]
    together = _judged([replace(row, draft=bad) if at % 2 == 0 else row for at, row in enumerate(rows)])
    return sum(one != other for one, other in zip(alone, together, strict=True))


def _row(seed: int, draft: Draft) -> Row:
    call = GenerationCall(
        tokens=PROMPT,
        prompt_len=len(PROMPT),
        sampling=SamplingParams(seed=seed),
        max_tokens=len(PROMPT),
        stop_token_ids=(),
        speculation=Speculation(Mode.REJECTION),
    )
    return Row(call, f"s{seed}", rank=0.0, limit=4 * len(PROMPT), tokens=PROMPT, goal=len(PROMPT), draft=draft)


def _judged(rows: Sequence[Row]) -> list[tuple[target_pass.Result, int]]:
    """Return each row's verdict and the resulting length of its KV."""
    engine = NativeEngine.load(small().target, dtype="float32", device="cpu", kv_bytes=1 << 22, threads=1)
    for row in rows:
        engine.admit(row.kv_name, row.limit)
    results = target_pass.verify_batch(engine, [ScheduledChunk(row, 0, row.goal) for row in rows])
    return [(result, engine.length(row.kv_name)) for row, result in zip(rows, results, strict=True)]


CHECKS: tuple[Check, ...] = (
    count("greedy identity, llama", lambda: wrong_tokens("llama"), crosses_a_border=True),
    count("greedy identity, gemma2", lambda: wrong_tokens("gemma2"), crosses_a_border=True),
    count("sessions of a failed pass", wrong_after_a_failure, crosses_a_border=True),
)

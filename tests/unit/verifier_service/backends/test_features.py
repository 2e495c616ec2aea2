"""Verdicts bring the features of the tokens that they judged, also after the sequence was preempted."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.engine.heads.fusing import FusingEngine
from specdec.rules.draft import NO_DRAFT, Draft
from tests.support.tiny_heads import HIDDEN, Options, PlainHead, make_tiny_head
from tests.support.tiny_models import make_tiny_model
from tests.unit.verifier_service.verifier_fakes import make_row, point_mass
from verifier_service.backends.batch_plan import HeadUse, Outcome, Row
from verifier_service.backends.model_thread import ModelThread
from verifier_service.config import VerifierSettings
from verifier_service.drafts.feature_window import FeatureWindow

PROMPTS = {name: [(start + 7 * index) % 320 for index in range(20)] for name, start in (("a", 1), ("b", 100))}
LENGTH = 24
TAPS = (0, 1, 2)
SETTINGS = VerifierSettings.load(None, {"model": {"path": "m"}, "chunk_tokens": 8})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a target and its head."""
    root = tmp_path_factory.mktemp("fused")
    return make_tiny_model(root / "target", layers=3), make_tiny_head(root / "head", taps=TAPS)


def load(folders: tuple[Path, Path]) -> FusingEngine:
    target, head = folders
    given = {"kv_bytes": 2**20, "wide_threads": None, "dtype": "float32", "device": "cpu", "threads": None}
    return FusingEngine.load(head, target, most_bytes=2**20, **given)


def row_of(name: str, tokens: Sequence[int], goal: int | None = None, draft: Draft = NO_DRAFT, **use: bool) -> Row:
    row = make_row(name, tuple(tokens), goal, draft, rank=float(name == "b"), limit=20 + LENGTH, prompt_len=20)
    return replace(row, call=replace(row.call, tokens=tuple(PROMPTS[name])), head=HeadUse(**({"follows": True} | use)))


def run(model: ModelThread) -> tuple[dict[str, list[int]], dict[str, FeatureWindow]]:
    """Generate for both prompts at once with drafts that are mostly wrong. Return all tokens, and all features."""
    texts, windows = (
        {name: list(prompt) for name, prompt in PROMPTS.items()},
        {name: FeatureWindow() for name in PROMPTS},
    )
    model.step((), [row_of(name, texts[name], 0) for name in texts])
    while going := [name for name, tokens in texts.items() if len(tokens) < 20 + LENGTH - 4]:
        rows = {name: row_of(name, texts[name], draft=point_mass(5, 6)) for name in going}
        results = model.step([name for name in PROMPTS if name not in going], list(rows.values())).results
        for name, row in rows.items():
            if isinstance(outcome := results.get(row), Outcome):
                texts[name] += outcome.verdict.tokens
                assert outcome.features is not None
                windows[name].add(outcome.features)
                assert windows[name].end == len(texts[name]) - 1
    return texts, windows


@pytest.mark.parametrize("scarce", [False, True])
def test_the_features_are_those_of_all_tokens_but_the_last(scarce: bool, folders: tuple[Path, Path]) -> None:
    engine, count = load(folders), 0
    model = ModelThread(engine, SETTINGS)
    reserve = engine.target.reserve

    def short(session: str, length: int) -> bool:  # each sixth reservation of the second sequence fails
        nonlocal count
        count += session == "b"
        return not (session == "b" and count % 6 == 0) and reserve(session, length)

    if scarce:
        engine.reserve = short  # type: ignore[method-assign]
    texts, windows = run(model)
    assert (model._kv.preempted > 1) is scarce
    plain, network = PlainHead(folders[1], Options(), torch.empty(0)), AutoModelForCausalLM.from_pretrained(folders[0])
    for name, tokens in texts.items():
        with torch.inference_mode():
            found = network(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
        features = windows[name].all()
        assert features is not None
        assert features.start == 0
        states = features.states(HIDDEN, torch.float32)
        torch.testing.assert_close(
            states, plain._fused(torch.cat([found[tap][0] for tap in TAPS], -1)), rtol=1e-4, atol=1e-4
        )


def test_rows_that_run_ahead_leave_their_features_to_the_next_row(folders: tuple[Path, Path]) -> None:
    model, tokens, found = ModelThread(load(folders), SETTINGS), list(PROMPTS["a"]), []
    model.step((), [row_of("a", tokens, 0)])
    for ahead in (False, True, True, False):
        row, results = replace(row_of("a", tokens), runs_ahead=ahead), {}
        while not results:
            results = model.step((), [row]).results
        outcome = results[row]
        assert isinstance(outcome, Outcome)
        tokens += outcome.verdict.tokens
        found.append(outcome.features and (outcome.features.start, outcome.features.end))
    length = len(PROMPTS["a"])
    assert found == [(0, length), None, None, (length, length + 3)]


def test_a_sequence_that_is_not_followed_has_none(folders: tuple[Path, Path]) -> None:
    model = ModelThread(load(folders), SETTINGS)
    model.step((), [row_of("a", PROMPTS["a"], 0, follows=False)])
    results = {}
    while not results:
        results = model.step((), [row := row_of("a", PROMPTS["a"], follows=False)]).results
    outcome = results[row]
    assert isinstance(outcome, Outcome)
    assert outcome.features is None

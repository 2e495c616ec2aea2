"""The target's head drafts just before the pass that judges its drafts, and changes no greedy token."""

from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.engine import Chunk
from specdec.engine.heads import sequences
from specdec.engine.heads.headed import HeadedEngine
from specdec.engine.heads.sequences import HeadSequences
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.trees.tree import ROOT, TreeDraft
from tests.support.tiny_heads import draft_ids, make_tiny_head
from tests.support.tiny_models import make_tiny_model
from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends.batch_plan import HeadUse, Outcome, Row
from verifier_service.backends.head_drafter import HeadDrafter
from verifier_service.backends.model_thread import ModelThread
from verifier_service.config import VerifierSettings

PROMPTS = {name: tuple((start + 7 * index) % 320 for index in range(20)) for name, start in (("a", 1), ("b", 100))}
LENGTH = 30
SETTINGS = VerifierSettings.load(None, {"model": {"path": "m"}, "chunk_tokens": 8})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a target and its head."""
    root = tmp_path_factory.mktemp("headed")
    return make_tiny_model(root / "target", layers=3), make_tiny_head(root / "head")


@pytest.fixture(scope="module")
def greedy(folders: tuple[Path, Path]) -> dict[str, list[int]]:
    """Return the output of each prompt by transformers."""
    model, outputs = AutoModelForCausalLM.from_pretrained(folders[0]), {}
    for name, prompt in PROMPTS.items():
        tokens = list(prompt)
        with torch.inference_mode():
            while len(tokens) < len(prompt) + LENGTH:
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        outputs[name] = tokens[len(prompt) :]
    return outputs


def load(folders: tuple[Path, Path], kv_bytes: int = 2**20) -> HeadedEngine:
    target, head = folders
    return HeadedEngine.load(
        head, target, kv_bytes=kv_bytes, wide_threads=None, dtype="float32", device="cpu", threads=None
    )


def row_of(name: str, output: Sequence[int], goal: int | None = None, gamma: int = 0, *, siblings: bool = False) -> Row:
    tokens = (*PROMPTS[name], *output)
    row = make_row(name, tokens, goal, limit=20 + LENGTH, prompt_len=20)
    return replace(
        row,
        call=replace(row.call, tokens=PROMPTS[name]),
        head=HeadUse(follows=True, gamma=gamma, siblings=siblings),
        rank=float(name == "b"),
    )


def run(model: ModelThread, gamma: int, *, siblings: Container[str] = ()) -> tuple[dict[str, list[int]], list[Outcome]]:
    """Generate for all prompts at once, those named with a second draft. Return the outputs, and the outcomes."""
    outputs: dict[str, list[int]] = {name: [] for name in PROMPTS}
    model.step((), [row_of(name, (), 0) for name in outputs])
    outcomes = []
    while going := [name for name, output in outputs.items() if len(output) < LENGTH]:
        rows = {
            name: row_of(
                name, outputs[name], None, min(gamma, LENGTH - 1 - len(outputs[name])), siblings=name in siblings
            )
            for name in going
        }
        ended = [name for name in PROMPTS if name not in going]
        results = model.step(ended, list(rows.values())).results
        for name, row in rows.items():
            if isinstance(outcome := results.get(row), Outcome):
                outcomes.append(outcome)
                outputs[name] += outcome.verdict.tokens
    return outputs, outcomes


def test_drafts_change_no_greedy_token(folders: tuple[Path, Path], greedy: dict[str, list[int]]) -> None:
    outputs, outcomes = run(ModelThread(load(folders), SETTINGS), gamma=3)
    assert outputs == greedy
    made = [outcome.drafted.draft.tokens for outcome in outcomes if outcome.drafted is not None]
    assert list(map(len, made)) == [outcome.offered for outcome in outcomes if outcome.drafted is not None]
    assert max(map(len, made)) == 3
    assert {token for draft in made for token in draft} <= set(draft_ids(100, 320).tolist())


@pytest.mark.parametrize("siblings", [("a",), ("a", "b")])
def test_a_second_draft_changes_no_greedy_token(
    siblings: tuple[str, ...],
    folders: tuple[Path, Path],
    greedy: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The target's token is the best first draft at one position in three, and the second best at the next."""
    made = HeadSequences.begin

    def begin(self: HeadSequences, sessions: Sequence[str], tokens: Sequence[int]) -> Tensor:
        places = [self.end(session) - 19 for session in sessions]
        logits = torch.full_like(made(self, sessions, tokens), -100.0)
        for own, session, place in zip(logits, sessions, places, strict=True):
            target = greedy[session][place]
            other, another = (target + 1) % 320, (target + 2) % 320
            best, second = ((target, other), (other, target), (other, another))[place % 3]
            own[best], own[second] = 9.0, 8.0
        return logits

    monkeypatch.setattr(HeadSequences, "begin", begin)
    outputs, outcomes = run(ModelThread(load(folders), SETTINGS), gamma=3, siblings=siblings)
    assert outputs == greedy
    trees = [outcome for outcome in outcomes if outcome.drafted and isinstance(outcome.drafted.draft, TreeDraft)]
    shapes = {outcome.drafted.draft.tree.parents[:3] for outcome in trees if outcome.offered > 2 and outcome.drafted}
    assert shapes == {(ROOT, ROOT, 0)}
    assert {outcome.verdict.path[:1] for outcome in trees if outcome.verdict.path is not None} == {(0,), (1,), ()}


def following(engine: HeadedEngine) -> HeadedEngine:
    """Return the engine with the first prompt computed, except its last token."""
    assert engine.admit("a", 50, PROMPTS["a"])
    engine.follow("a", 50, PROMPTS["a"])
    assert engine.reserve("a", 50)
    engine.forward([Chunk("a", PROMPTS["a"][:-1], 0)])
    return engine


def test_two_greedy_drafts_are_the_two_best_ids(folders: tuple[Path, Path]) -> None:
    """A request that allows only one of them gets one draft, and one that allows neither gets none."""
    logits = following(load(folders)).head.begin(["a"], [PROMPTS["a"][-1]])[0]
    best, outside = logits.topk(2).indices.tolist(), int(logits.argmin())
    row, drafts = row_of("a", (), None, gamma=1, siblings=True), []
    for allowed in ((), (best[1],), (outside,)):
        sampling = SamplingParams(temperature=0.0, allowed_token_ids=allowed)
        each = replace(row, call=replace(row.call, sampling=sampling))
        drafts.append(HeadDrafter(following(load(folders)).head).drafts([each])[each].tokens)
    assert drafts == [tuple(best), (best[1],), ()]


def test_a_prompt_has_no_draft(folders: tuple[Path, Path]) -> None:
    model = ModelThread(load(folders), SETTINGS)
    model.step((), [row_of("a", (), 0)])
    results = model.step((), [row := row_of("a", (), None, gamma=3)]).results
    while not results:
        results = model.step((), [row]).results
    outcome = results[row]
    assert isinstance(outcome, Outcome)
    assert outcome.offered == 0
    assert outcome.drafted is not None
    assert outcome.drafted.draft.tokens == ()


def test_a_draft_for_which_the_head_reads_much_is_told_apart(
    folders: tuple[Path, Path], greedy: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "_MANY", 10)
    model, output, told = ModelThread(load(folders), SETTINGS), list[int](), list[bool]()
    model.step((), [row_of("a", (), 0)])
    for gamma in (0, 2, 2, 2):
        row = row_of("a", output, None, gamma)
        while row not in (step := model.step((), [row])).results:
            pass
        outcome = step.results[row]
        assert isinstance(outcome, Outcome)
        output += outcome.verdict.tokens
        told += [chunk.row.prefilling for chunk in step.chunks]
    assert output == greedy["a"][: len(output)]
    assert told == [False, True, False, False]


def test_preempted_sequences_draft_again(folders: tuple[Path, Path], greedy: dict[str, list[int]]) -> None:
    engine = load(folders)
    model = ModelThread(engine, SETTINGS)
    count = 0

    def scarce(session: str, length: int) -> bool:  # each tenth reservation of the second sequence fails
        nonlocal count
        count += session == "b"
        return not (session == "b" and count % 10 == 0) and engine.target.reserve(session, length)

    engine.reserve = scarce  # type: ignore[method-assign]
    outputs, outcomes = run(model, gamma=3)
    assert outputs == greedy
    assert model._kv.preempted > 1
    assert any(outcome.offered for outcome in outcomes[-8:])


class OddIds:
    """A grammar that allows odd ids only."""

    expensive = False
    too_complex = False

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        return [b"\xaa" * 40 for _ in range(len(drafts) + 1)]

    def forced(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        return ()


class NoDraftIds(OddIds):
    """A grammar that allows no id of the head after two drafts."""

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        return [b"\x02" + bytes(39) if len(drafts) > 1 else None] * (len(drafts) + 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammars_mask_drafts_and_end_them(temperature: float, folders: tuple[Path, Path]) -> None:
    engine = load(folders)
    drafter = HeadDrafter(engine.head)
    for name, prompt in PROMPTS.items():
        assert engine.admit(name, 50, prompt)
        engine.follow(name, 50, prompt)
        assert engine.reserve(name, 50)
        engine.forward([Chunk(name, prompt[:-1], 0)])
    sampling = SamplingParams(temperature=temperature, seed=3)
    rows = [row_of(name, (), None, gamma=4) for name in PROMPTS]
    rows = [replace(row, call=replace(row.call, sampling=sampling)) for row in rows]
    first, second = replace(rows[0], grammar=OddIds()), replace(rows[1], grammar=NoDraftIds())
    drafts = drafter.drafts([first, second])
    assert len(drafts[first].tokens) == 4
    assert all(token % 2 for token in drafts[first].tokens)
    assert len(drafts[second].tokens) == 2
    assert len(drafts[second].probs) == 2
    assert engine.head._kv.end("a") == 19


def test_a_failing_head_leaves_the_rounds_plain(
    folders: tuple[Path, Path], greedy: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no drafts")

    monkeypatch.setattr(HeadSequences, "begin", fail)
    outputs, outcomes = run(ModelThread(load(folders), SETTINGS), gamma=3)
    assert outputs == greedy
    assert not any(outcome.offered for outcome in outcomes)


def test_draws_depend_on_the_position_alone(folders: tuple[Path, Path]) -> None:
    """A coupled draft has no q̂, and equals the draft of another batch."""
    row = row_of("a", (), None, gamma=3)
    call = replace(row.call, sampling=SamplingParams(seed=5), speculation=Speculation(Mode.COUPLED, 3))
    found = []
    for names in (("a",), ("b", "a")):
        engine = load(folders)
        for name in names:
            assert engine.admit(name, 50, PROMPTS[name])
            engine.follow(name, 50, PROMPTS[name])
            assert engine.reserve(name, 50)
            engine.forward([Chunk(name, PROMPTS[name][:-1], 0)])
        rows = [
            replace(row_of(name, (), None, gamma=3), call=call) if name == "a" else row_of(name, ()) for name in names
        ]
        drafts = HeadDrafter(engine.head).drafts(rows)
        found.append(drafts[rows[-1]])
    assert found[0].tokens == found[1].tokens
    assert found[0].probs == ()

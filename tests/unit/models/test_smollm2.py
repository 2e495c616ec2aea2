"""Distillation from a target's own answers: padding has no effect, training learns and resumes, the card states α."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from models.smollm2 import card, distill
from models.smollm2.__main__ import main
from models.smollm2.answers import KEPT, Answers, Teacher, answer, batch
from models.smollm2.evaluate import Alpha, alphas, questions
from models.smollm2.prompts import prompts
from models.train.compute import choose
from models.train.evaluate import StepCost
from specdec.engine import Chunk, NativeEngine
from tests.tiny_models import make_tiny_model

NEW = 12
INPUTS = [[5, 6, 7], [9, 10, 11, 12, 13, 14], [20, 21]] * 8


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    folder = make_tiny_model(tmp_path_factory.mktemp("target"), layers=4, spread=0.2, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return Teacher(model, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="module")
def written(teacher: Teacher) -> Answers:
    return answer(INPUTS, teacher, 1, NEW)


def test_prompts_are_a_function_of_the_seed_and_none_is_in_the_benchmark() -> None:
    assert prompts(60, 3) == prompts(60, 3) != prompts(60, 4)
    assert not {text for texts in questions().values() for text in texts} & set(prompts(3000, 0))


def test_answers_carry_the_distributions_of_the_target_without_padding(teacher: Teacher, written: Answers) -> None:
    for row in (0, 1, 2):
        tokens = written.rows[row, written.starts[row] :]
        logits = teacher.model(input_ids=tokens[None, :-1]).logits[0, -NEW:]
        own = written.ids[row].long()
        assert torch.allclose(
            logits.log_softmax(-1).gather(-1, own), written.log_probs[row].float(), atol=2e-2, rtol=1e-2
        )
    assert written.ids.shape[-1] == KEPT


def test_a_greedy_row_takes_the_likeliest_ids(written: Answers) -> None:
    assert torch.equal(written.rows[1, written.prompt :], written.ids[1, :, 0].long())


def test_the_target_itself_would_be_a_perfect_drafter(teacher: Teacher, written: Answers) -> None:
    ids = torch.arange(teacher.model.config.vocab_size)
    logits = distill.hidden_states(teacher.model, written) @ teacher.model.get_output_embeddings().weight.T
    _, plain, sharp = distill.divergences(written, ids, logits).tolist()
    tail = 1 - written.log_probs[distill.own_tokens(written)].float().exp().sum(-1).mean().item()
    assert plain == pytest.approx(tail, abs=1e-2)
    assert sharp == pytest.approx(0, abs=2e-2)


def test_an_answer_ends_after_its_end_token(teacher: Teacher, written: Answers) -> None:
    ended = written.rows.clone()
    ended[0, written.prompt + 3] = teacher.tokenizer.eos_token_id
    cut = replace(written, rows=ended, ends=torch.full((len(ended),), written.prompt + 4))
    assert distill.own_tokens(cut)[0].tolist() == [True] * 4 + [False] * (NEW - 4)


def test_the_frequent_ids_are_those_with_most_probability(written: Answers) -> None:
    few = distill.frequent_ids([written], 320, 7)
    own = distill.own_tokens(written)
    ids, probabilities = written.ids[own].flatten().long(), written.log_probs[own].flatten().double().exp()
    mass = torch.zeros(320, dtype=torch.float64).index_add_(0, ids, probabilities)
    assert few.tolist() == sorted(mass.topk(7).indices.tolist())
    assert len(distill.frequent_ids([written], 320, 400)) == 320


def test_training_learns_and_goes_on_after_a_kill(
    teacher: Teacher, written: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill, "WARMUP", 1)
    ids, compute = distill.frequent_ids([written], 320, 320), choose("cpu", None, compiled=False)
    job = distill.Job([written], 12, 0, tmp_path / "once")

    def divergence(drafter: LlamaForCausalLM) -> float:
        logits = distill.hidden_states(drafter, written) @ teacher.model.get_input_embeddings().weight[ids].T
        return distill.divergences(written, torch.arange(320), logits)[0].item()

    torch.manual_seed(0)
    trained = distill.distil(job, teacher.model, ids, compute)
    assert divergence(trained) < divergence(distill.initial_drafter(teacher.model, distill.LAYERS)) - 0.05
    again = distill.distil(job, teacher.model, ids, compute)
    assert torch.equal(again.model.norm.weight, trained.model.norm.weight)
    assert torch.equal(trained.get_input_embeddings().weight, teacher.model.get_input_embeddings().weight)


def test_a_batch_of_answers_is_written_once(teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.smollm2.answers.ROWS", 2)
    monkeypatch.setattr("models.smollm2.answers.NEW_TOKENS", 3)
    first = batch(0, teacher, 0, tmp_path)
    monkeypatch.setattr("models.smollm2.answers.answer", None)
    assert torch.equal(batch(0, teacher, 0, tmp_path).rows, first.rows)


def test_alpha_of_the_target_as_its_own_drafter_is_one(teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.smollm2.evaluate.questions", lambda: {"qa": ["Why?", "Where is the post office?"]})
    found = alphas(teacher, teacher.model, torch.arange(320), 0, tokens=6)["qa"]
    assert found.greedy == 1.0
    assert 0.5 < found.sampled <= 1.01


def test_the_card_says_that_a_low_alpha_does_not_pay() -> None:
    facts = card.Facts({"qa": Alpha(0.31, 0.42, 900)}, StepCost(30.0, 3.0), 1000, 2, 30, 0)
    assert "α stays below 0.5" in card.render(facts)
    assert "| qa | 0.310 | 0.420 | 900 |" in card.render(facts)
    high = card.Facts({"qa": Alpha(0.6, 0.7, 900)}, StepCost(30.0, 3.0), 1000, 2, 30, 0)
    assert "below" not in card.render(high)


def test_the_command_writes_a_drafter_that_the_engine_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.smollm2.answers.ROWS", 4)
    monkeypatch.setattr("models.smollm2.answers.NEW_TOKENS", 4)
    monkeypatch.setattr("models.smollm2.distill.ROWS", 2)
    monkeypatch.setattr("models.smollm2.distill.HEAD", 40)
    monkeypatch.setattr("models.smollm2.evaluate.questions", lambda: {"qa": ["Why?"]})
    target = make_tiny_model(tmp_path / "target", layers=3, tie_word_embeddings=True, context=4096)
    out = tmp_path / "drafter"
    main(batches=2, steps=3, target=str(target), out=out, state=tmp_path / "state")
    assert "| qa |" in (out / "README.md").read_text(encoding="utf-8")
    drafter = NativeEngine.load(out, dtype="float32", device="cpu", kv_bytes=2**20, threads=None)
    drafter.admit("a", 4)
    drafter.reserve("a", 4)
    (logits,) = drafter.forward([Chunk("a", [5], logits=1)])
    assert int((logits > torch.finfo(torch.float32).min).sum()) == 40

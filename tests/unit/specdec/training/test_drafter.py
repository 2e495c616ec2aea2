"""Distillation from a target's own answers: padding has no effect, training learns and resumes, the card states α."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from specdec.cli.app import status_of
from specdec.engine import Chunk, NativeEngine
from specdec.errors import ConfigError
from specdec.training import answers, card, distil, weights
from specdec.training.answers import KEPT, TargetAnswers, Teacher, answer, batch
from specdec.training.compute import choose
from specdec.training.drafter import DrafterPlan, train_drafter
from specdec.training.evaluate import DraftAlpha, alphas, questions
from specdec.training.prompts import HELD_OUT, prompts, read_prompts
from specdec.training.step_cost import StepCost
from tests.support.tiny_models import make_tiny_model

QUESTIONS = Path(__file__).parents[4] / "benchmarks" / "spec_bench.jsonl"
NEW = 12
INPUTS = [[5, 6, 7], [9, 10, 11, 12, 13, 14], [20, 21]] * 8


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    folder = make_tiny_model(tmp_path_factory.mktemp("target"), layers=4, spread=0.2, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return Teacher(model, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="module")
def written(teacher: Teacher) -> TargetAnswers:
    return answer(INPUTS, teacher, 1, NEW)


def test_prompts_are_a_function_of_the_seed_and_none_is_in_the_benchmark() -> None:
    assert prompts(60, 3) == prompts(60, 3) != prompts(60, 4)
    assert not {text for texts in questions(QUESTIONS).values() for text in texts} & set(prompts(3000, 0))


def test_answers_carry_the_distributions_of_the_target_without_padding(
    teacher: Teacher, written: TargetAnswers
) -> None:
    for row in (0, 1, 2):
        tokens = written.rows[row, written.starts[row] :]
        logits = teacher.model(input_ids=tokens[None, :-1]).logits[0, -NEW:]
        own = written.ids[row].long()
        assert torch.allclose(
            logits.log_softmax(-1).gather(-1, own), written.log_probs[row].float(), atol=2e-2, rtol=1e-2
        )
    assert written.ids.shape[-1] == KEPT


def test_a_greedy_row_takes_the_likeliest_ids(written: TargetAnswers) -> None:
    assert torch.equal(written.rows[1, written.prompt :], written.ids[1, :, 0].long())


def test_the_target_itself_would_be_a_perfect_drafter(teacher: Teacher, written: TargetAnswers) -> None:
    ids = torch.arange(teacher.model.config.vocab_size)
    logits = distil.hidden_states(teacher.model, written) @ teacher.model.get_output_embeddings().weight.T
    plain, sharp = (distil.divergence(written, ids, logits, weight).item() for weight in torch.eye(3)[1:])
    tail = 1 - written.log_probs[distil.own_tokens(written)].float().exp().sum(-1).mean().item()
    assert plain == pytest.approx(tail, abs=1e-2)
    assert sharp == pytest.approx(0, abs=2e-2)


def test_an_answer_ends_after_its_end_token(teacher: Teacher, written: TargetAnswers) -> None:
    ended = written.rows.clone()
    ended[0, written.prompt + 3] = teacher.tokenizer.eos_token_id
    cut = replace(written, rows=ended, ends=torch.full((len(ended),), written.prompt + 4))
    assert distil.own_tokens(cut)[0].tolist() == [True] * 4 + [False] * (NEW - 4)


def test_the_frequent_ids_are_those_with_most_probability(written: TargetAnswers) -> None:
    few = distil.frequent_ids([written], 320, 7)
    own = distil.own_tokens(written)
    ids, probabilities = written.ids[own].flatten().long(), written.log_probs[own].flatten().double().exp()
    mass = torch.zeros(320, dtype=torch.float64).index_add_(0, ids, probabilities)
    assert few.tolist() == sorted(mass.topk(7).indices.tolist())
    assert len(distil.frequent_ids([written], 320, 400)) == 320


def test_training_learns_and_goes_on_after_a_kill(
    teacher: Teacher, written: TargetAnswers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distil, "WARMUP", 1)
    ids, compute = distil.frequent_ids([written], 320, 320), choose("cpu", None, compiled=False)
    job = distil.DistilJob([written], 12, 0, tmp_path / "once")

    def divergence(drafter: LlamaForCausalLM) -> float:
        logits = distil.hidden_states(drafter, written) @ teacher.model.get_input_embeddings().weight[ids].T
        return distil.divergence(written, torch.arange(320), logits, torch.eye(3)[0]).item()

    torch.manual_seed(0)
    trained = distil.distil(job, teacher.model, ids, compute)
    assert divergence(trained) < divergence(weights.initial_drafter(teacher.model, 2)) - 0.05
    again = distil.distil(job, teacher.model, ids, compute)
    assert torch.equal(again.model.norm.weight, trained.model.norm.weight)
    assert torch.equal(trained.get_input_embeddings().weight, teacher.model.get_input_embeddings().weight)


def test_a_batch_of_answers_is_written_once(teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.training.answers.ROWS", 2)
    monkeypatch.setattr("specdec.training.answers.NEW_TOKENS", 3)
    first = batch(0, teacher, prompts, 0, tmp_path)
    monkeypatch.setattr("specdec.training.answers.answer", None)
    assert torch.equal(batch(0, teacher, prompts, 0, tmp_path).rows, first.rows)


def test_alpha_of_the_target_as_its_own_drafter_is_one(teacher: Teacher) -> None:
    asked = {"qa": ["Why?", "Where is the post office?"]}
    found = alphas(teacher, teacher.model, torch.arange(320), asked, 0, tokens=6)["qa"]
    assert found.greedy == 1.0
    assert 0.5 < found.sampled <= 1.01


def facts(alpha: DraftAlpha) -> card.DrafterFacts:
    cost = StepCost(30.0, 3.0)
    return card.DrafterFacts("small", (2, 30), (40, 320), "prompts", {"qa": alpha}, cost, 1000, 30, 16, "again")


def test_the_card_says_that_a_low_alpha_does_not_pay() -> None:
    low = card.render(facts(DraftAlpha(0.31, 0.42, 900)))
    assert "α stays below 0.5" in low
    assert "| qa | 0.310 | 0.420 | 900 |" in low
    assert "c, the duration of a drafter's step relative to the target's, is 0.100" in low
    assert "below" not in card.render(facts(DraftAlpha(0.6, 0.7, 900)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.training.answers.ROWS", 4)
    monkeypatch.setattr("specdec.training.answers.NEW_TOKENS", 4)
    monkeypatch.setattr("specdec.training.distil.ROWS", 2)
    monkeypatch.setattr("specdec.training.distil.HEAD", 40)
    monkeypatch.setattr("specdec.training.drafter._HELD_OUT", 2)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "target", layers=3, tie_word_embeddings=True, context=4096)


@pytest.mark.usefixtures("small")
def test_the_command_writes_a_drafter_that_the_engine_serves(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "prompts.txt", tmp_path / "drafter"
    data.write_text("".join(f"Prompt {number}\n" for number in range(40)), encoding="utf-8")
    options = ["--target", str(target), "--data", str(data), "--out", str(out), "--state", str(tmp_path / "state")]
    assert status_of(["train", "drafter", *options, "--batches", "2", "--steps", "3"]) == 0
    told = capsys.readouterr().err
    assert "α 0." in told
    assert f"specdec up --target {target} --drafter {out}" in told
    card_ = (out / "README.md").read_text(encoding="utf-8")
    assert "| held out |" in card_
    assert "prompts of `prompts.txt`" in card_
    drafter = NativeEngine.load(out, dtype="float32", device="cpu", kv_bytes=2**20, threads=None)
    drafter.admit("a", 4)
    drafter.reserve("a", 4)
    (logits,) = drafter.forward([Chunk("a", [5], logits=1)])
    assert int((logits > torch.finfo(torch.float32).min).sum()) == 40


@pytest.mark.usefixtures("small")
def test_a_second_run_resumes_and_another_plan_is_refused(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = DrafterPlan(target, tmp_path / "drafter", tmp_path / "state", batches=1, steps=2, layers=1)
    first = train_drafter(plan)
    monkeypatch.setattr(answers, "_written", None)
    assert train_drafter(plan) == first
    with pytest.raises(ConfigError, match="another seed"):
        train_drafter(replace(plan, seed=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "3"], "--layers must be from 1 to 2"),
        (["--data", "missing.txt"], "--data missing.txt: cannot be read"),
        (["--questions", "missing.jsonl"], "--questions missing.jsonl: cannot be read"),
    ],
)
def test_a_wrong_option_is_refused_before_any_work(
    target: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    assert status_of(["train", "drafter", "--target", str(target), "--state", str(state), *options]) == 2
    assert message in capsys.readouterr().err
    assert not state.exists()


def test_a_target_that_is_not_here_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["train", "drafter", "--target", "no-such-model"]) == 2
    assert "--target no-such-model is no folder" in capsys.readouterr().err


def test_a_target_whose_logits_are_scaled_is_refused(teacher: Teacher) -> None:
    config = copy.deepcopy(teacher.model.config)
    config.logits_scaling = 8.0
    with pytest.raises(ConfigError, match="logits_scaling"):
        weights.check_target(config, 1)


def test_prompts_of_a_file_are_taught_or_held_out(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"p{number}"} for number in range(14)]
    rows += [
        {"turns": ["t", "u"]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "m"}]},
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    found = read_prompts(file)
    assert found.held_out == ("p0", f"p{HELD_OUT}")
    assert {*found.taught} == {*(f"p{number}" for number in range(14)), "t", "m"} - {*found.held_out}
    assert sorted(found.draw(2 * len(found.taught), 3)) == sorted(2 * found.taught)
    assert found.draw(5, 3) == found.draw(5, 3) != found.draw(5, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": 3}\n', "line 1 has no text"),
        ('{"messages": [{"role": "system", "content": "s"}]}\n', "line 1 has no text"),
        ("no JSON\n", "line 1 has no text"),
        ('{"prompt": "a"}\n', "at least 16 different prompts, has 1"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_prompts(tmp_path / "prompts.jsonl")

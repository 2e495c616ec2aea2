"""A head learns from texts of the target: its rollout is what is served, training resumes, the folder is loaded."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from specdec.cli.app import status_of
from specdec.engine.heads.checkpoint import HeadTarget, load_head
from specdec.engine.heads.headed import HeadedEngine
from specdec.engine.native import NativeEngine, load_checked
from specdec.errors import ConfigError
from specdec.training import compute
from specdec.training.answers import load_teacher, ranked_ids
from specdec.training.heads import head as training
from specdec.training.heads import rollout as rollouts
from specdec.training.heads import writer
from specdec.training.heads.folder import HeadFacts, initial_head, render, usual_taps
from specdec.training.heads.head import chosen, train_head
from specdec.training.heads.rollout import STEPS, HeadAlpha, alpha_of, batch_of, loss_of, places_of, rollout
from specdec.training.heads.texts import TargetText, TextStart, load_texts, read_texts, save_texts, write_texts
from specdec.training.heads.token_file import load_tokens, save_tokens
from specdec.training.heads.writer import HeadPlan
from specdec.training.optimizer import build_optimizers
from specdec.training.step_cost import StepCost
from tests.support.tiny_heads import Options, PlainHead, make_tiny_head
from tests.support.tiny_models import make_tiny_model
from tests.unit.specdec.engine.heads.head_scene import TAPS, TOKENS, embedding, states_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), layers=4, spread=0.3, context=2048)


def text_of(tokens: list[int], begin: int, states: torch.Tensor | None = None) -> TargetText:
    """Return a text whose tokens have one likely id each."""
    own = torch.tensor(tokens[begin:], dtype=torch.int32)[:, None]
    found = torch.zeros(len(tokens) - 1, 96) if states is None else states
    return TargetText(torch.tensor(tokens), begin, found, own, torch.zeros(len(own), 1))


@pytest.mark.parametrize("options", [Options(), Options(fc_norm=True, norm_output=True)], ids=str)
def test_a_rollout_drafts_what_is_served(options: Options, target: Path, tmp_path: Path) -> None:
    weight = embedding(target)
    whole = HeadTarget(320, 32, 4, torch.float32, CPU, lambda ids: weight[ids], lambda: weight)
    folder = make_tiny_head(tmp_path, options=options, taps=TAPS)
    head, plain = load_head(folder, whole), PlainHead(folder, options, weight)
    assert head.ids is not None
    # States are stored in bfloat16, so the plain head reads rounded ones, too.
    states = states_of(target)(TOKENS[:19]).bfloat16().float()
    long, short = text_of(TOKENS[:20], 3, states), text_of(TOKENS[:11], 6, states[:10])
    batch = batch_of([long, short], CPU)
    batch = replace(batch, states=batch.states.float())
    with torch.no_grad():
        drafted = torch.stack(list(rollout(head, batch)), 1)
    places = [*range(2, 20 - STEPS - 1), *range(5, 11 - STEPS - 1)]
    assert len(drafted) == len(places) == int(batch.drafting.sum())
    for row, place in zip(drafted, places, strict=True):
        expected = plain.drafted(states[: place + 1], TOKENS[: place + 2], TOKENS[place + 2 : place + STEPS + 1])
        torch.testing.assert_close(row, expected[:, head.ids], rtol=1e-4, atol=1e-4)
    for step, (ids, _) in enumerate(batch.likely, 1):
        assert ids[:, 0].tolist() == [TOKENS[place + step + 1] for place in places]


def test_texts_have_the_states_and_distributions_of_their_tokens(target: Path, tmp_path: Path) -> None:
    engine = NativeEngine.load(
        target, dtype="float32", device="cpu", threads=None, kv_bytes=2**22, taps=lambda layers: TAPS
    )
    starts = [TextStart(TOKENS[:7], 7), TextStart(TOKENS[:30], 20)]
    save_texts(tmp_path / "texts.pt", write_texts(engine, starts, (0.0, 1.0), 12, 3))
    for text, start in zip(load_texts(tmp_path / "texts.pt"), starts, strict=True):
        tokens = text.tokens.tolist()
        assert tokens[: len(start.tokens)] == start.tokens
        assert (text.begin, text.written) == (start.begin, len(tokens) - start.begin)
        torch.testing.assert_close(text.states.float(), states_of(target)(tokens[:-1]), rtol=2e-2, atol=2e-2)
        assert text.log_probs.shape == (text.written, 64)
        if start.begin == 7:
            assert text.ids[:, 0].tolist() == tokens[7:]  # greedy
    assert engine.memory.live == 0


def test_a_step_takes_each_text_once_in_an_epoch() -> None:
    texts = [text_of(list(range(12)), 1 + index % 7) for index in range(3 * training.ROWS)]
    epoch = [id(text) for step in range(3) for text in chosen(texts, step, 5)]
    assert sorted(epoch) == sorted(map(id, texts))
    assert [id(text) for text in chosen(texts, 3, 5)] != epoch[: training.ROWS]


def test_alpha_is_that_of_drafts_after_accepted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    # Draft ids are 3, 5 and 9. Chains guess 5, 9, 3; texts go on 5 9 3 and 5 3 9.
    ids = torch.tensor([3, 5, 9])
    logits = [torch.full((2, 3), -50.0).index_fill_(1, torch.tensor([place]), 50.0) for place in (1, 2, 0)]
    monkeypatch.setattr(rollouts, "rollout", lambda head, batch: iter(logits))
    monkeypatch.setattr(rollouts, "batch_of", lambda texts, device: replace(made, likely=likely))
    made = batch_of([text_of(list(range(12)), 1)], CPU)
    chains = torch.tensor([[5, 9, 3], [5, 3, 9]], dtype=torch.int32)
    likely = [(chains[:, step, None], torch.tensor([[0.5], [0.5]]).log()) for step in range(STEPS)]

    class Sized:
        config = type("Config", (), {"layer": type("Layer", (), {"vocab_size": 10})})

    found = alpha_of(Sized(), ids, [object()], [object()])  # type: ignore[arg-type, list-item]
    assert found.greedy == pytest.approx((1.0, 0.5, 1.0))
    assert found.sampled == pytest.approx((0.5, 0.25, 0.5))
    assert found.coverage == pytest.approx(0.5)


def test_places_are_those_of_ranked_ids() -> None:
    likely = (torch.tensor([[7, 3], [7, 9]]), torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log())
    ids = ranked_ids([likely], 10, 2)
    assert ids.tolist() == [7, 9]
    assert places_of(ids, 10).tolist() == [-1] * 7 + [0, -1, 1]


def test_usual_taps_exist_in_small_targets() -> None:
    assert usual_taps(30) == (2, 15, 27)
    assert usual_taps(1) == (0, 0, 0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.training.answers.ROWS", 16)
    monkeypatch.setattr("specdec.training.answers.NEW_TOKENS", 24)
    monkeypatch.setattr(training, "_HELD_OUT", 4)
    monkeypatch.setattr(writer, "_ASKED_TOKENS", 24)


def prompts_in(folder: Path, name: str = "chats.txt") -> Path:
    file = folder / name
    file.write_text("".join(f"Prompt {number}\n" for number in range(40)), encoding="utf-8")
    return file


@pytest.mark.usefixtures("small")
def test_the_command_writes_a_head_that_the_engine_serves(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "head"
    options = ["--target", str(target), "--prompts", str(prompts_in(tmp_path)), "--out", str(out)]
    options += ["--state", str(tmp_path / "state"), "--tokens", "300", "--epochs", "1", "--draft-ids", "100"]
    assert status_of(["train", "head", *options]) == 0
    told = capsys.readouterr().err
    assert "of 300 tokens, about" in told
    assert f"specdec up --target {target} --head {out}" in told
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "| chats |" in card
    assert "prompts of `chats.txt`" in card
    HeadedEngine.load(out, target, kv_bytes=2**21, wide_threads=None, dtype="float32", device="cpu", threads=None)


def test_a_head_learns_its_texts(target: Path) -> None:
    teacher = load_teacher(target)
    model = load_checked(target, dtype="float32", device="cpu", threads=None, taps=usual_taps)
    states = torch.randn(len(TOKENS) - 1, 96, generator=torch.Generator().manual_seed(1))
    batch = batch_of([text_of(TOKENS, 5, states)], CPU)
    ids = torch.arange(320)
    head = initial_head(teacher.model, model.decoder, ids, 0)
    frozen = head.lm_head.weight.clone()
    optimizers, losses = build_optimizers(head, 2e-2, torch.float32), []
    for _ in range(12):
        losses.append(loss := loss_of(head, batch, ids, 0.0))
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.8 * losses[0]
    assert torch.equal(head.lm_head.weight, frozen)


@pytest.mark.usefixtures("small")
def test_a_second_run_resumes_and_another_plan_is_refused(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = HeadPlan(target, tmp_path / "head", tmp_path / "state", tokens=300, draft_ids=128, epochs=1)
    found = train_head(plan)
    assert {*found} == {"passages", "topics", "sums"}
    weights = (plan.out / "model.safetensors").read_bytes()
    monkeypatch.setattr(writer, "save_texts", None)  # nothing is written again
    assert train_head(plan) == found
    assert (plan.out / "model.safetensors").read_bytes() == weights
    with pytest.raises(ConfigError, match="another seed"):
        train_head(replace(plan, seed=1))


@pytest.mark.usefixtures("small")
def test_a_training_continues_the_texts_of_an_earlier_one(target: Path, tmp_path: Path) -> None:
    plan = HeadPlan(target, tmp_path / "head", tmp_path / "state", tokens=300, draft_ids=128, epochs=0.01)
    train_head(plan)
    first = load_tokens(plan.out / training.TEXTS)
    assert first.batches == len([*plan.state.glob("texts-*.pt")])
    again = replace(plan, out=tmp_path / "again", data=plan.out / training.TEXTS, tokens=600)
    train_head(again)
    both = load_tokens(again.out / training.TEXTS)
    assert both.texts[: len(first.texts)] == first.texts
    fresh = [tuple(text.tokens) for text in both.texts[len(first.texts) :]]
    assert fresh
    assert not {*fresh} & {tuple(text.tokens) for text in first.texts}  # it has not written the same batches again
    other = make_tiny_model(tmp_path / "target", layers=4, spread=0.3, context=2048, vocab_size=300)
    with pytest.raises(ConfigError, match="another tokenizer"):
        train_head(replace(again, target=other, state=tmp_path / "third"))


@pytest.mark.usefixtures("small")
def test_a_training_continues_from_an_earlier_head(target: Path, tmp_path: Path) -> None:
    plan = HeadPlan(target, tmp_path / "head", tmp_path / "state", tokens=300, draft_ids=50, epochs=1)
    train_head(plan)
    again = replace(plan, out=tmp_path / "again", start=plan.out, draft_ids=128, epochs=0.01)
    train_head(again)
    train_head(fresh := replace(again, out=tmp_path / "fresh", start=None, draft_ids=50))
    first, second, other = (load_file(each.out / "model.safetensors") for each in (plan, again, fresh))
    assert torch.equal(first["d2t"], second["d2t"])
    name = "layers.0.mlp.down_proj.weight"
    assert (first[name] - second[name]).norm() < 0.5 * (first[name] - other[name]).norm()
    assert "--start head" in (again.out / "README.md").read_text()
    unlike = make_tiny_head(tmp_path / "unlike", taps=(0, 1, 2))
    with pytest.raises(ConfigError, match="--start: the head has other options"):
        train_head(replace(again, start=unlike))


def test_tokens_are_computed_as_they_were_written(target: Path, tmp_path: Path) -> None:
    engine = NativeEngine.load(
        target, dtype="float32", device="cpu", threads=None, kv_bytes=2**22, taps=lambda layers: TAPS
    )
    written = write_texts(engine, [TextStart(TOKENS[:7], 7), TextStart(TOKENS[:30], 20)], (1.0,), 12, 3)
    save_tokens(tmp_path / "texts.npz", written, 1, engine.tokenizer_hash)
    stored = load_tokens(tmp_path / "texts.npz")
    assert (stored.batches, stored.tokenizer) == (1, engine.tokenizer_hash)
    for text, known in zip(read_texts(engine, stored.texts), written, strict=True):
        assert text.tokens.tolist() == known.tokens.tolist()
        assert (text.begin, text.written) == (known.begin, known.written)
        torch.testing.assert_close(text.states, known.states, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(text.log_probs, known.log_probs, rtol=1e-2, atol=1e-2)
    assert engine.memory.live == 0


def test_the_texts_of_smollm2_are_whole() -> None:
    stored = load_tokens(Path(__file__).parents[4] / "models/smollm2/texts.npz")
    assert stored.batches > 0
    assert len(stored.texts) > 80 * stored.batches
    assert max(max(text.tokens) for text in stored.texts) < 49_152
    assert all(len(text.tokens) - text.begin > STEPS for text in stored.texts)


@pytest.mark.parametrize("content", [b"", b"no archive", "another"])
def test_a_file_without_tokens_is_refused(content: bytes | str, tmp_path: Path) -> None:
    path = tmp_path / "texts.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, tokens=[1, 2], lengths=[3], begins=[1], batches=1, tokenizer="")
    with pytest.raises(ConfigError, match=r"--data .*texts\.npz"):
        load_tokens(path)


@pytest.mark.parametrize(("amx", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_cpu_computes_in_bfloat16_only_with_amx(
    amx: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    machine = compute.choose("cpu", threads=None, compiled=False)
    with machine.autocast():
        assert machine.dtype == (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.mark.usefixtures("small")
def test_texts_stay_within_the_disk(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = HeadPlan(target, tmp_path / "head", tmp_path / "state", tokens=900, draft_ids=50, epochs=0.01, disk=2**20)
    train_head(plan)
    assert "--disk 1.0MiB is full after" in capsys.readouterr().err
    assert sum(file.stat().st_size for file in plan.state.glob("texts-*.pt")) <= plan.disk


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompts", "missing.txt"], "--prompts missing.txt: cannot be read"),
        (["--questions", "missing.jsonl"], "--questions missing.jsonl: cannot be read"),
        (["--data", "missing.npz"], "--data missing.npz: cannot be read"),
        (["--disk", "much"], "--disk much is no size, such as 16GiB"),
        (["--disk", "1MiB", "--tokens", "100000"], "--disk 1.0MiB is too little: 100000 tokens with their states take"),
    ],
)
def test_a_wrong_option_is_refused_before_any_work(
    target: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    assert status_of(["train", "head", "--target", str(target), "--state", str(state), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not state.exists()


def test_the_card_states_alpha_by_position_and_domain() -> None:
    alphas = {"qa": HeadAlpha((0.4, 0.5, 0.6), (0.3, 0.2, 0.1), 0.9, 100)}
    alphas["rag"] = HeadAlpha((0.2, 0.5, 0.6), (0.5, 0.2, 0.1), 0.8, 50)
    facts = HeadFacts("small", (2, 15, 27), (40, 320), "prompts", alphas, StepCost(20.0, 2.0), 1000, (30, 16), "again")
    card = render(facts)
    assert "| qa | 0.400 0.500 0.600 | 0.300 0.200 0.100 | 90.0% | 100 |" in card
    assert "| all | 0.300 0.500 0.600 | 0.400 0.200 0.100 | 85.0% | 150 |" in card
    assert "one token, is 0.100" in card

"""Any Hugging Face program can load the exported folder."""

import stat
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.train.architecture import CONTEXT, DRAFTER, TARGET, Shape, build
from models.train.tokenizer import train_tokenizer
from specdec.training.weights import export

TINY = Shape(layers=2, hidden=16, intermediate=32, heads=2, kv_heads=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = train_tokenizer(["def f():\n    return 1\n"], context=CONTEXT, vocabulary=260)
    export(build(TINY, vocabulary=len(tokenizer), seed=0), tokenizer, tmp_path)
    return tmp_path


def test_float32_weights_are_exactly_the_stored_bfloat16_ones(folder: Path) -> None:
    wide = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stored = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert stored.dtype == torch.bfloat16
    vocabulary = len(AutoTokenizer.from_pretrained(folder))
    for name, weight in build(TINY, vocabulary, seed=0).state_dict().items():
        assert torch.equal(wide.state_dict()[name], weight.to(torch.bfloat16).float())


def test_export_leaves_the_training_model_as_it_was(tmp_path: Path) -> None:
    model = build(TINY, vocabulary=260, seed=0)
    export(model, train_tokenizer(["x = 1\n"], CONTEXT, vocabulary=260), tmp_path)
    assert model.dtype == torch.float32
    assert model.config.dtype != torch.bfloat16


def test_every_exported_file_can_be_read_by_another_user(folder: Path) -> None:
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}


def test_the_drafter_shares_the_targets_width_and_has_at_most_two_layers() -> None:
    assert TARGET.layers >= 12
    assert DRAFTER.layers <= 2
    assert DRAFTER.hidden == TARGET.hidden

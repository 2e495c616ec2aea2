"""Facts for the rest of the system are read from the model and its tokenizer."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec.engine.loader import load_decoder, load_ends, read_facts
from specdec.errors import ModelRefused
from specdec.sampling import vocabulary
from tests.support.tiny_models import ARCHITECTURES, make_tiny_model

DEMO = Path(__file__).parents[4] / "models" / "demo" / "drafter"


class FakeTokenizer:
    eos_token_id = 2

    def __init__(self, size: int) -> None:
        self._vocabulary = {f"t{index}": index for index in range(size)}

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary


def fake_model(rows: int = 10, **settings: Any) -> SimpleNamespace:
    config = SimpleNamespace(**({"eos_token_id": 3, "max_position_embeddings": 64} | settings))
    config.get_text_config = lambda decoder: config
    embeddings = SimpleNamespace(weight=torch.empty(rows, 1))
    return SimpleNamespace(config=config, get_input_embeddings=lambda: embeddings)


def test_the_vocabulary_is_the_tokenizers_not_the_matrixs() -> None:
    facts = read_facts(Path("models/tiny"), fake_model(rows=10), FakeTokenizer(7), "ab")
    assert facts.vocab_size == 7
    assert facts.tokenizer_hash == vocabulary.fingerprint(FakeTokenizer(7).get_vocab())
    assert (facts.name, facts.context_length, facts.fingerprint) == ("tiny", 64, "ab")
    assert facts.end_token_ids == {2}


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused() -> None:
    with pytest.raises(ModelRefused, match="ids up to 10, the model has 10 rows"):
        read_facts(Path("tiny"), fake_model(rows=10), FakeTokenizer(11), "")


@pytest.mark.parametrize("length", [None, 0, "long"])
def test_a_model_without_a_context_length_is_refused(length: object) -> None:
    with pytest.raises(ModelRefused, match="context length is unknown"):
        read_facts(Path("tiny"), fake_model(max_position_embeddings=length), FakeTokenizer(7), "")


@pytest.mark.parametrize("size", [100_000, 100])
def test_weights_that_are_cut_short_are_refused_in_one_line(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(DEMO, folder)
    os.truncate(folder / "model.safetensors", size)
    with pytest.raises(ModelRefused) as refused:
        load_decoder(folder, "float32", "cpu")
    assert refused.value.message.startswith(
        f"{folder}: model.safetensors cannot be loaded: it is incomplete, {size} of "
    )
    assert "\n" not in refused.value.message


def test_weights_without_a_header_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(DEMO, folder)
    (folder / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"[]" + bytes(100))
    with pytest.raises(ModelRefused, match="the model cannot be loaded") as refused:
        load_decoder(folder, "float32", "cpu")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_ends_of_a_model_are_loaded_without_its_layers(architecture: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, architecture, layers=3)
    whole, facts = load_decoder(folder, "float32", "cpu")
    ends, same, layers = load_ends(folder, "float32", "cpu")
    ids = torch.arange(facts.vocab_size)
    assert layers == 3
    assert same == replace(facts, fingerprint="")
    assert torch.equal(ends.embed(ids), whole.embed(ids))
    assert torch.equal(ends.head.weight, whole.head.weight)
    assert ends._model.num_parameters() < whole._model.num_parameters()

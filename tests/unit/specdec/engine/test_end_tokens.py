"""End tokens of a model: the union of those named by the folder's files, the tokenizer and the chat template."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec.engine.end_tokens import end_of_turn, end_token_ids, named_end_ids
from specdec.engine.loader import read_facts
from specdec.errors import ModelRefused
from tests.support.tiny_models import make_tokenizer

VOCABULARY = 330
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}BEHIND\n{% endfor %}"


def tokenizer(behind: str = "", eos: str | None = "<|endoftext|>") -> Any:
    made = make_tokenizer(320)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|im_end|>!"]})
    made.eos_token = eos
    made.chat_template = TURNS.replace("BEHIND", behind)
    return made


def folder(path: Path, **files: Any) -> Path:
    for name, eos in files.items():
        (path / f"{name}.json").write_text(json.dumps(eos if isinstance(eos, dict) else {"eos_token_id": eos}))
    return path


def test_the_ids_of_all_sources_end_a_generation(tmp_path: Path) -> None:
    here = folder(tmp_path, generation_config=[5, 6], config=7)
    turn = tokenizer().convert_tokens_to_ids("<|im_end|>")
    assert end_token_ids(here, 9, tokenizer("<|im_end|>"), VOCABULARY) == {5, 6, 7, 0, turn}
    assert named_end_ids(here, tokenizer("<|im_end|>")) == {5, 6, 7, 0}


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config": 5}, {5}),
        ({"config": 5}, {5}),
        ({"config": {"text_config": {"eos_token_id": [5, 6]}}}, {5, 6}),
        ({"config": None}, {9}),
        ({}, {9}),
        ({"generation_config": 100_000, "config": 5}, {5}),
    ],
)
def test_the_architecture_decides_only_where_nothing_else_does(
    tmp_path: Path, files: dict[str, Any], ids: set[int]
) -> None:
    assert end_token_ids(folder(tmp_path, **files), 9, tokenizer(eos=None), VOCABULARY) == ids


@pytest.mark.parametrize("wrong", ["</s>", [1, "2"], True, 1.5])
def test_what_is_no_id_is_refused_by_name(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(ModelRefused, match=r"generation_config\.json: eos_token_id is .*, not an id"):
        end_token_ids(folder(tmp_path, generation_config=wrong), None, tokenizer(), VOCABULARY)


@pytest.mark.parametrize(
    ("behind", "end"),
    [
        ("<|im_end|>", "<|im_end|>"),
        ("\n <|im_end|>", "<|im_end|>"),
        ("<|im_end|>!", "<|im_end|>!"),
        (".<|im_end|>", None),
        ("{{ raise_exception('no') }}", None),
        ("{{ nothing.there.at.all }}", None),
        ("{% if %}", None),
    ],
)
def test_the_end_of_a_turn_is_the_token_after_an_answer(behind: str, end: str | None) -> None:
    made = tokenizer(behind)
    assert end_of_turn(made) == (made.convert_tokens_to_ids(end) if end else None)


def test_a_template_that_drops_the_answer_or_is_missing_names_no_end() -> None:
    made = tokenizer()
    made.chat_template = "<|im_end|>"
    assert end_of_turn(made) is None
    made.chat_template = None
    assert end_of_turn(made) is None


@pytest.mark.parametrize(
    ("files", "eos", "alone"), [({"config": 7}, None, True), ({}, "<|endoftext|>", True), ({}, None, False)]
)
def test_an_end_that_only_the_template_names_is_told_apart(
    tmp_path: Path, files: dict[str, Any], eos: str | None, alone: bool
) -> None:
    made = tokenizer("<|im_end|>", eos)
    turn = made.convert_tokens_to_ids("<|im_end|>")
    config = SimpleNamespace(eos_token_id=3, max_position_embeddings=64)
    config.get_text_config = lambda decoder: config
    model = SimpleNamespace(config=config, get_input_embeddings=lambda: SimpleNamespace(weight=torch.empty(400, 1)))
    facts = read_facts(folder(tmp_path, **files), model, made, "")
    assert turn in facts.end_token_ids
    assert facts.turn_end_ids == ({turn} if alone else frozenset())
    assert not read_facts(folder(tmp_path, config=[7, turn]), model, made, "").turn_end_ids

"""The tokenizer: lossless on any text, loaded offline, with a chat template that writes code and comments."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.train.tokenizer import END_OF_TEXT, train_tokenizer

_TEXTS = ["def add(a, b):\n    return a + b\n", "class Stack:\n    def __init__(self):\n        self.items = []\n"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(_TEXTS, context=64, vocabulary=300)


def test_any_text_survives_encoding_and_decoding(tokenizer: PreTrainedTokenizerFast) -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.text())
    def round_trip(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text

    round_trip()


def test_every_byte_has_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "".join(map(chr, range(0x250))) + "\U0001f40d\r\n\t"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_end_of_text_is_token_zero_and_is_never_added_by_itself(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.pad_token_id == 0
    assert 0 not in tokenizer("def f():")["input_ids"]
    assert tokenizer(END_OF_TEXT)["input_ids"] == [0]


def test_the_same_texts_give_the_same_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    again = train_tokenizer(_TEXTS, context=64, vocabulary=300)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_a_saved_tokenizer_loads_the_same_with_its_template(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode(_TEXTS[1]) == tokenizer.encode(_TEXTS[1])
    assert loaded.chat_template == tokenizer.chat_template


def test_the_chat_template_writes_instructions_as_comments(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add two numbers.\n\nIn Python."},
        {"role": "assistant", "content": "def add(a, b):\n    return a + b"},
        {"role": "user", "content": "Now subtract."},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "# Be brief.\n# Add two numbers.\n#\n# In Python.\ndef add(a, b):\n    return a + b\n# Now subtract.\n"
    )

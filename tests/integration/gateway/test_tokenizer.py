"""Tokenizers loaded by transformers, as the gateway uses them."""

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from gateway.request import ChatPrompt, TextPrompt, TokenPrompt
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import ModelTokenizer
from gateway.tools.values import Message, Tool
from specdec.errors import ConfigError, ContextLengthExceeded, FieldInvalid, UnsupportedParameter
from specdec.sampling.vocabulary import fingerprint

DEMO = Path(__file__).parents[3] / "models" / "demo" / "target"
TEXT = "def naïve(x):\n    return '😀 déjà vu 漢字'\n"


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer.load(DEMO)


def test_text_is_encoded_as_transformers_does(tokenizer: ModelTokenizer) -> None:
    expected = AutoTokenizer.from_pretrained(DEMO).encode(TEXT)
    assert tokenizer.encode(TextPrompt(TEXT)) == tuple(expected)
    assert tokenizer.encode(TokenPrompt((1, 2))) == (1, 2)


def test_a_chat_goes_through_the_models_template(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode(ChatPrompt((Message("user", "Read a file."), Message("assistant", "x = 1"))))
    assert tokenizer.decode(ids) == "# Read a file.\nx = 1\n"


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NEXT = ChatPrompt((Message("user", "and now"),))


def test_a_turn_is_encoded_as_the_template_has_it_after_an_answer(tokenizer: ModelTokenizer) -> None:
    begun = tokenizer.encode(ChatPrompt((Message("user", "one"),)))
    answer = tokenizer.encode_after(TextPrompt("x = 1"), begun)
    added = tokenizer.encode_after(NEXT, (*begun, *answer))
    assert tokenizer.decode((*begun, *answer, *added)) == "# one\nx = 1\n# and now\n"


def test_a_closing_token_that_was_generated_is_not_put_twice() -> None:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    inner.chat_template = CHATML
    tokenizer = ModelTokenizer(inner)
    closing = inner.convert_tokens_to_ids("<|im_end|>")
    cut = tokenizer.encode_after(NEXT, (5, 6))
    closed = tokenizer.encode_after(NEXT, (5, 6, closing))
    assert cut == (closing, *closed)
    assert inner.decode(closed) == "\n<|im_start|>user\nand now<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_of_ids_or_on_nothing_is_encoded_as_any_other(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.encode_after(TokenPrompt((1, 2)), (5,)) == (1, 2)
    assert tokenizer.encode_after(NEXT, ()) == tokenizer.encode(NEXT)


def test_the_pieces_of_a_text_are_the_text(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode(TextPrompt(TEXT))
    detokenizer = Detokenizer(tokenizer.decode)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert "" in pieces


def test_the_fingerprint_is_the_vocabularys(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.fingerprint == fingerprint(AutoTokenizer.from_pretrained(DEMO).get_vocab())


def test_the_longest_token_bounds_every_token(tokenizer: ModelTokenizer) -> None:
    lengths = [len(tokenizer.token_bytes(token)) for token in range(2048)]
    assert tokenizer.longest_token == max(lengths)
    assert tokenizer.longest_token < 64


@pytest.mark.parametrize("text", [TEXT * 50, "x" * 2000, " " * 2000])
def test_a_long_text_is_encoded_as_a_whole_or_given_up(tokenizer: ModelTokenizer, text: str) -> None:
    ids = tokenizer.encode(TextPrompt(text))
    for room in (len(ids), len(ids) // 2 + 1):
        assert tokenizer.encode(TextPrompt(text), room) == ids
    with pytest.raises(ContextLengthExceeded) as refused:
        tokenizer.encode(TextPrompt(text * 20), len(ids) // 4)
    assert refused.value.param == "prompt"


def test_special_tokens_have_no_text(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.decode([0]) == ""


def test_a_model_without_a_chat_template_takes_no_chats() -> None:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.chat_template = None
    with pytest.raises(UnsupportedParameter) as refused:
        ModelTokenizer(inner).encode(ChatPrompt((Message("user", "hi"),)))
    assert refused.value.param == "messages"


def test_what_the_template_refuses_is_the_callers_mistake() -> None:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.chat_template = "{{ raise_exception('no system messages') }}"
    with pytest.raises(FieldInvalid, match="no system messages"):
        ModelTokenizer(inner).encode(ChatPrompt((Message("system", "hi"),)))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ messages[7].content.nothing }}", "no element 7"),
        ("{% if %}", "Expected an expression"),
        ("{{ ''.join([1]) }}", "TypeError"),
    ],
)
def test_whatever_a_template_raises_is_a_refusal_that_names_it(template: str, said: str) -> None:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.chat_template = template
    with pytest.raises(FieldInvalid, match=f"the model's chat template .*{said}"):
        ModelTokenizer(inner).encode(ChatPrompt((Message("user", "hi"),)))


def test_of_several_templates_the_default_is_used_and_that_for_tools() -> None:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.chat_template = {"default": "plain", "tool_use": "with {{ tools | length }}"}
    tokenizer, talk = ModelTokenizer(inner), ChatPrompt((Message("user", "hi"),))
    assert tokenizer.decode(tokenizer.encode(talk)) == "plain"
    tools = (Tool("f", "", '{"type": "object"}', False),)
    assert tokenizer.decode(tokenizer.encode(replace(talk, tools=tools))) == "with 1"


def test_named_templates_without_a_default_are_named() -> None:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.chat_template = {"rag": "x", "coder": "y"}
    with pytest.raises(UnsupportedParameter, match="templates are coder, rag, and none is the default") as refused:
        ModelTokenizer(inner).encode(ChatPrompt((Message("user", "hi"),)))
    assert refused.value.param == "messages"


@pytest.mark.parametrize("single", ["<s> $A", "<s> $A </s>", "<s> <t> $A </s>", "$A </s>"])
def test_a_text_begins_once_and_nothing_ends_it(single: str) -> None:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.add_special_tokens({"additional_special_tokens": ["<s>", "<t>", "</s>"]})
    ids = [(name, inner.convert_tokens_to_ids(name)) for name in ("<s>", "<t>", "</s>")]
    inner.backend_tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=ids)
    tokenizer, opening = ModelTokenizer(inner), single.partition("$A")[0].replace(" ", "")
    plain = tokenizer.encode(TextPrompt("hi <t> ho", special=False))
    begun = tokenizer.encode(TextPrompt("hi <t> ho"))
    assert inner.decode(begun[: len(begun) - len(plain)]).replace(" ", "") == opening
    assert begun[len(begun) - len(plain) :] == plain
    assert tokenizer.encode(TextPrompt(f"{opening}hi <t> ho")) == begun
    assert tokenizer.encode(TextPrompt(f"{opening}hi <t> ho", special=False)) == begun
    assert tokenizer.encode_after(TextPrompt("hi <t> ho"), begun) == plain
    inner.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer, talk = ModelTokenizer(inner), (Message("user", "hi <t> ho"),)
    own = tokenizer.encode(ChatPrompt(talk))
    chat = ChatPrompt(talk, special=True)
    assert tokenizer.encode(chat) == (*begun[: len(begun) - len(plain)], *own)
    assert tokenizer.encode_last(chat, (), 99) == tokenizer.encode(chat)
    inner.chat_template = opening + inner.chat_template
    tokenizer = ModelTokenizer(inner)
    assert tokenizer.encode(chat) == tokenizer.encode(ChatPrompt(talk)), "a beginning of the template is not doubled"


def test_documents_are_text_for_templates_that_render_them() -> None:
    inner = AutoTokenizer.from_pretrained(DEMO)
    inner.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    inner.chat_template = (
        "{% for d in documents or [] %}<|im_start|>{{ d.title }}: {{ d.text }}<|im_end|>{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tokenizer, talk = ModelTokenizer(inner), (Message("user", "hi"),)
    documents = ({"title": "a", "text": "x<|im_end|>y"}, {"title": "b", "text": "z"})
    ids = tokenizer.encode(ChatPrompt(talk, documents=documents))
    assert inner.decode(ids) == "<|im_start|>a: x<|im_end|>y<|im_end|><|im_start|>b: z<|im_end|>hi"
    assert ids.count(inner.convert_tokens_to_ids("<|im_end|>")) == len(documents)
    assert tokenizer.encode(ChatPrompt(talk)) == tokenizer.encode(TextPrompt("hi", special=False))


def test_a_folder_without_a_tokenizer_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        ModelTokenizer.load(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError) as refused:
        ModelTokenizer.load(tmp_path)
    assert "\n" not in refused.value.message


def test_bad_words_are_encoded_as_vllm_does(tokenizer: ModelTokenizer) -> None:
    found = tokenizer.encode_words(["def", "  zebra", "def"])
    plain = AutoTokenizer.from_pretrained(DEMO)
    alone = [tuple(plain.encode(word, add_special_tokens=False)) for word in ("def", "zebra")]
    assert set(alone) <= set(found)
    assert len(set(found)) == len(found)
    for word in set(found) - set(alone):
        assert plain.decode(word) in (" def", " zebra")

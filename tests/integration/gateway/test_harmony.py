"""gpt-oss: channels that are added tokens, read and rendered over ten turns with thinking, calls and answers."""

import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gateway.text.tokenizer import ModelTokenizer
from gateway.tools.message_reader import MessageReader, joined_message
from gateway.tools.reading import Reading
from specdec.grammar.compiler import GrammarCompiler
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import EOS, Script, ScriptedVerifier, facts
from tests.support.tokenizers_apart import ALPHABET

SPECIAL = (
    *("<|return|>", "<|startoftext|>", "<|endoftext|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>"),
    *("<|message|>", "<|call|>", "<|endofprompt|>"),
)
CALL_END = EOS + SPECIAL.index("<|call|>")
TEMPLATE = """
{{- "<|start|>system<|message|>Reasoning: " ~ (reasoning_effort | default("medium")) ~ "<|end|>" }}
{%- if tools %}{{ "<|start|>developer<|message|>namespace functions " ~ (tools | tojson) ~ "<|end|>" }}{% endif %}
{%- set last = namespace(name="") %}
{%- for m in messages %}
{%- if m.role == "assistant" and m.tool_calls %}
{%- if m.content and m.thinking %}{{ raise_exception("content and thinking before a call") }}{% endif %}
{%- if m.content or m.thinking %}
{{- "<|start|>assistant<|channel|>analysis<|message|>" ~ (m.content or m.thinking) ~ "<|end|>" }}
{%- endif %}
{%- set call = m.tool_calls[0].function %}{% set last.name = call.name %}
{{- "<|start|>assistant to=" ~ "functions." ~ call.name ~ "<|channel|>commentary json<|message|>" }}
{{- (call.arguments | tojson) ~ "<|call|>" }}
{%- elif m.role == "assistant" %}{{ "<|start|>assistant<|channel|>final<|message|>" ~ m.content ~ "<|end|>" }}
{%- elif m.role == "tool" %}
{%- if not last.name %}{{ raise_exception("no call before") }}{% endif %}
{{- "<|start|>functions." ~ last.name ~ " to=assistant<|channel|>commentary<|message|>" }}
{{- (m.content | tojson) ~ "<|end|>" }}
{%- else %}{{ "<|start|>" ~ m.role ~ "<|message|>" ~ m.content ~ "<|end|>" }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif %}"""
"""Renders as gpt-oss' own template does, and refuses what that refuses."""
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"page": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["page"],
            "additionalProperties": False,
        },
    },
}
THOUGHT = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"page": 1}'
ANSWERS: Sequence[tuple[str, tuple[str, str | None, list[str]]]] = (
    (THOUGHT + CALL, ("I look.", None, ['{"page": 1}'])),
    (THOUGHT + "<|channel|>final<|message|>Done 😀.", ("I look.", "Done 😀.", [])),
    (CALL, ("", None, ['{"page": 1}'])),
    (' to=functions.look<|channel|>commentary json<|message|>{"page": 1}', ("", None, ['{"page": 1}'])),
    (
        THOUGHT + "<|channel|>commentary<|message|>A moment.<|end|><|start|>assistant" + CALL,
        ("I look.", "A moment.", ['{"page": 1}']),
    ),
    (
        f'{THOUGHT} to=functions.look<|channel|>commentary json<|message|>{{"page": 2}}',
        ("I look.", None, ['{"page": 2}']),
    ),
    ("<|channel|>final<|message|>to=functions.look is a name.", ("", "to=functions.look is a name.", [])),
    ("Plain.", ("", "Plain.", [])),
    ("to", ("", "to", [])),
    ("to=be", ("", "to=be", [])),
)


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    """A tokenizer of bytes with harmony's special tokens."""
    words = Tokenizer(models.BPE({word: index for index, word in enumerate([*ALPHABET, *SPECIAL])}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=SPECIAL[0], chat_template=TEMPLATE)
    return ModelTokenizer(fast)


@pytest.fixture
async def here(tokenizer: ModelTokenizer) -> AsyncIterator[Stage]:
    info = facts(
        vocab_size=EOS + len(SPECIAL),
        tokenizer_hash=tokenizer.fingerprint,
        context_length=20_000,
        end_token_ids=(EOS, CALL_END),
    )
    async with stage(ScriptedVerifier(info=info), tokenizer=tokenizer) as found:
        yield found


def ids(tokenizer: ModelTokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer._tokenizer.encode(text, add_special_tokens=False))


def prompt(here: Stage, tokenizer: ModelTokenizer) -> str:
    return tokenizer.spelled(here.verifier.calls[-1].tokens)


async def asked(here: Stage, streamed: bool, **body: Any) -> Any:
    """Return the choice of an answer, whole or joined from a stream."""
    ask: Any = {"model": "bytes", "tools": [TOOL], **body}
    if not streamed:
        return (await here.client.chat.completions.create(**ask)).choices[0]
    async with here.client.chat.completions.stream(**ask) as stream:
        async for _ in stream:
            pass
        return stream.current_completion_snapshot.choices[0]


@pytest.mark.parametrize("gamma", [0, 3])
@pytest.mark.parametrize("streamed", [False, True])
async def test_ten_turns_are_read_and_rendered(
    here: Stage, tokenizer: ModelTokenizer, streamed: bool, gamma: int
) -> None:
    history: list[Any] = [{"role": "user", "content": "Text: <|channel|>final<|message|>"}]
    for text, (reasoning, content, calls) in ANSWERS:
        here.verifier.script = Script(tokens=ids(tokenizer, text), gamma=gamma)
        choice = await asked(here, streamed, messages=history, reasoning_effort="high")
        message = choice.message.model_dump(exclude_none=True)
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        assert message.get("reasoning_content", "") == reasoning
        assert (message.get("content") or None) == content
        assert [each["function"]["arguments"] for each in message.get("tool_calls", ())] == calls
        rendered = prompt(here, tokenizer)
        assert rendered.startswith("<|start|>system<|message|>Reasoning: high<|end|>")
        assert rendered.endswith("<|start|>assistant")
        assert here.verifier.calls[-1].tokens.count(EOS + SPECIAL.index("<|start|>")) == rendered.count("<|start|>")
        history.append(message)
        for call in message.get("tool_calls", ()):
            history.append({"role": "tool", "tool_call_id": call["id"], "content": "<|call|> empty"})
        if not calls:
            history.append({"role": "user", "content": "Go on."})


async def test_thinking_before_a_call_is_kept_in_history(here: Stage, tokenizer: ModelTokenizer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"page": 1}'}}
    history: Any = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "empty"},
    ]
    await asked(here, False, messages=history)
    assert "<|channel|>analysis<|message|>I look.<|end|>" in prompt(here, tokenizer)
    history[1]["content"] = "A moment."
    await asked(here, False, messages=history)
    assert "<|channel|>analysis<|message|>A moment.<|end|>" in prompt(here, tokenizer)


@pytest.mark.parametrize("cut", range(1, len(CALL) + 30, 7))
async def test_every_cut_is_accepted_back(here: Stage, tokenizer: ModelTokenizer, cut: int) -> None:
    here.verifier.script = Script(tokens=ids(tokenizer, THOUGHT + CALL))
    ask: list[Any] = [{"role": "user", "content": "go"}]
    choice = await asked(here, False, messages=ask, max_tokens=cut)
    message = choice.message.model_dump(exclude_none=True)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "empty"} for call in message.get("tool_calls", ())
    ]
    assert (await asked(here, False, messages=[*ask, message, *results, *ask])).finish_reason in ("stop", "tool_calls")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}, "strict"])
async def test_forced_and_strict_calls_are_the_only_ones_allowed(
    here: Stage, tokenizer: ModelTokenizer, choice: Any
) -> None:
    here.verifier.script = Script(tokens=ids(tokenizer, THOUGHT + CALL))
    strict = {"type": "function", "function": TOOL["function"] | {"strict": True}}
    options = {"tools": [strict]} if choice == "strict" else {"tool_choice": choice}
    await asked(here, False, messages=[{"role": "user", "content": "go"}], **options)
    grammar = here.verifier.calls[-1].sampling.grammar
    assert grammar is not None
    content = tokenizer._tokenizer.backend_tokenizer.to_str()
    compiler = GrammarCompiler.of_tokenizer(content, EOS + len(SPECIAL), (EOS, CALL_END))
    assert compiler is not None
    for text in (THOUGHT + CALL, CALL):
        assert allowed(compiler.compile(grammar), ids(tokenizer, text))
    assert not allowed(compiler.compile(grammar), ids(tokenizer, CALL.replace("1", "77")))
    for seed in range(10):
        output = walked(compiler.compile(grammar), random.Random(seed))
        reader = MessageReader(Reading("gpt-oss", thinking="gpt-oss"), "g")
        message = joined_message([reader.feed(tokenizer.spelled(output)), reader.end()])
        if choice != "strict":
            assert message.calls
        for call in message.calls:
            assert 0 <= json.loads(call.arguments)["page"] <= 9


def allowed(state: Any, output: Sequence[int]) -> bool:
    """Whether an output may end where it ends."""
    last = state.masks((), output)[-1]
    return bool(last and last[EOS // 8] >> EOS % 8 & 1)


def walked(state: Any, drawn: random.Random) -> list[int]:
    """Return the tokens of a random output that the grammar allows, without its end."""
    output: list[int] = []
    while len(output) < 400:
        (mask,) = state.masks(output)
        may = [token for token in range(EOS + len(SPECIAL)) if mask is None or mask[token // 8] >> token % 8 & 1]
        assert may, "nothing can follow"
        special = [token for token in may if token >= EOS]
        token = drawn.choice(special if special and drawn.random() < 0.3 else may)
        if token in (EOS, CALL_END):
            return output
        output.append(token)
    raise AssertionError("the output does not end")

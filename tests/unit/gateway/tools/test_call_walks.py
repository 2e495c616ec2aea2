"""Random texts of each format's grammar of calls are read as calls whose arguments match their schemas."""

import json
import random
from collections.abc import Sequence

import jsonschema
import pytest

from gateway.tools.formats import FORMATS, TAGS, format_of
from gateway.tools.message_reader import MessageReader, joined_message
from gateway.tools.reading import Reading
from gateway.tools.values import Tool
from gateway.tools.xml_calls import texts_of
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar
from tests.unit.gateway.grammars.walks import END, ENDING, LONGEST

TEXT = {"type": "string", "maxLength": 4}
PROPERTIES = {
    "s": TEXT,
    "n": {"type": "integer", "minimum": 0, "maximum": 9},
    "l": {"type": "array", "items": {"enum": ["x", "<", "]"]}, "maxItems": 2},
    "e": {"enum": ["a", "1", "null"]},
    "o": {"anyOf": [TEXT, {"type": "null"}]},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["s", "n"], "additionalProperties": False}
TOOLS = (Tool("f", "", json.dumps(SCHEMA), True),)
NAMES = sorted(set(FORMATS) - {"unknown"})
WALKS = 8


def walk(compiler: GrammarCompiler, tags: Sequence[str], grammar: Grammar, seed: int) -> str | None:
    """Draw a random text of a grammar; tags may be tokens after END. Return None if it gets too long."""
    dice, state, output = random.Random(seed), compiler.compile(grammar), list[int]()
    while len(output) < LONGEST:
        (mask,) = state.masks(output)
        assert mask is not None
        allowed = [8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        groups = [[each for each in allowed if each > END], [each for each in allowed if each in ENDING]]
        chosen = next((each for each in groups if each and dice.random() < 0.6), allowed)
        token = END if END in allowed and dice.random() < 0.5 else dice.choice(chosen)
        if token == END:
            spelled = (tags[each - END - 1].encode() if each > END else bytes([each]) for each in output)
            return b"".join(spelled).decode()
        output.append(token)
    return None


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_text_of_the_grammar_is_read_as_its_calls(name: str, forced: bool, special: bool) -> None:
    tags = sorted(TAGS) if special else []
    form = format_of("tools" + " ".join(FORMATS[name].marks), tags)
    grammar, compiler = form.grammar(TOOLS, forced=forced, parallel=True), GrammarCompiler.of_bytes(tags)
    texts = [text for seed in range(WALKS) if (text := walk(compiler, tags, grammar, seed)) is not None]
    for text in texts:
        reader = MessageReader(Reading(form.name, texts_of(TOOLS)), "g")
        message = joined_message((reader.feed(text), reader.end()))
        for call in message.calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMA)
        assert reader.called is bool(message.calls)
        assert not forced or (message.calls and not message.content.strip())
    assert texts

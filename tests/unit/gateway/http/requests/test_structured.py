"""Every field that constrains the output becomes one grammar, named after its field."""

import json
from typing import Any

import pytest

from gateway.http.requests.completions import ChatBody, CompletionBody
from gateway.request import GenerationRequest
from specdec.errors import FieldInvalid, FieldRequired, RequestError, UnsupportedParameter
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, GrammarKind

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def completion(**fields: Any) -> GenerationRequest:
    return CompletionBody.parse({"prompt": "x", **fields}).request("r")


def chat(**fields: Any) -> GenerationRequest:
    return ChatBody.parse({"messages": [{"role": "user", "content": "x"}], **fields}).request("r")


def named(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format", GrammarKind.JSON_SCHEMA),
        ({"response_format": named(SCHEMA)}, "response_format.json_schema.schema", GrammarKind.JSON_SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", GrammarKind.JSON_SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "structured_outputs.json", GrammarKind.JSON_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object", GrammarKind.JSON_SCHEMA),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex", GrammarKind.REGEX),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs.choice", GrammarKind.LARK),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "structured_outputs.grammar", GrammarKind.LARK),
        ({"guided_json": SCHEMA}, "guided_json", GrammarKind.JSON_SCHEMA),
        ({"guided_regex": "a+"}, "guided_regex", GrammarKind.REGEX),
        ({"guided_choice": ["a"]}, "guided_choice", GrammarKind.LARK),
        ({"guided_grammar": 'start: "a"'}, "guided_grammar", GrammarKind.LARK),
    ],
)
def test_a_form_is_a_grammar(fields: dict[str, Any], param: str, kind: GrammarKind) -> None:
    for request in (completion(**fields), chat(**fields)):
        assert request.sampling.grammar is not None
        assert (request.sampling.grammar.kind, request.grammar_param) == (kind, param)


def test_any_text_needs_no_grammar() -> None:
    assert chat(response_format={"type": "text"}).sampling.grammar is chat().sampling.grammar is None


def test_white_space_has_an_end_unless_the_caller_says_how_it_looks() -> None:
    def options(**fields: Any) -> Any:
        grammar = completion(structured_outputs={"json": SCHEMA, **fields}).sampling.grammar
        assert grammar is not None
        return json.loads(grammar.text)["x-guidance"]

    assert options() == {"whitespace_pattern": r"( |\n[ \t]{0,24})?"}
    assert options(whitespace_pattern=" *") == {"whitespace_pattern": " *"}
    assert options(disable_any_whitespace=True) == {"whitespace_flexible": False}
    own = {"x-guidance": {"whitespace_flexible": True, "whitespace_pattern": None}}
    assert options(json=SCHEMA | own) == own["x-guidance"]


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, FieldRequired, "response_format.json_schema"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "n"}}},
            FieldRequired,
            "response_format.json_schema",
        ),
        ({"response_format": {"type": "structural_tag"}}, FieldInvalid, "response_format.type"),
        ({"response_format": {"type": "text", "x": 1}}, UnsupportedParameter, "response_format.x"),
        ({"structured_outputs": {}}, FieldInvalid, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, FieldInvalid, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, FieldInvalid, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, FieldInvalid, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, FieldInvalid, "structured_outputs.choice"),
        ({"guided_regex": ""}, FieldInvalid, "guided_regex"),
        ({"guided_regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, FieldInvalid, "guided_regex"),
        ({"guided_grammar": "a" * (MAX_GRAMMAR_BYTES + 1)}, FieldInvalid, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, FieldInvalid, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, FieldInvalid, "guided_regex"),
        ({"guided_regex": "a", "ignore_eos": True}, FieldInvalid, "ignore_eos"),
    ],
)
def test_a_wrong_form_is_refused_by_name(fields: dict[str, Any], error: type[RequestError], param: str) -> None:
    with pytest.raises(error) as refused:
        completion(**fields)
    assert (type(refused.value), refused.value.param) == (error, param)

"""Field types of the HTTP API: a value that callers may write in several ways is read into the one that is used.

The forms of output have OpenAI's fields, vLLM's, and vLLM's older ones.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo, WithJsonSchema

from gateway.bounds import (
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_IDS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    check_arguments,
    unique_stops,
)
from gateway.callers.caller import MAX_NAME
from gateway.grammars import structured
from gateway.http.requests.body import Body
from gateway.request import MAX_CHOICES, MAX_OF_PROMPT, Prompt, TextPrompt, TokenPrompt
from specdec.beams.options import MAX_WIDTH
from specdec.errors import FieldInvalid, FieldRequired, UnsupportedParameter
from specdec.planning.gamma_policy import POLICIES, GammaPolicy, PolicyKind, parse_gamma
from specdec.sampling.grammar import Grammar
from specdec.sampling.params import MAX_LOGPROBS, check_ids

Schema = dict[str, Any]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
MAX_INT = 2**31 - 1
"""Largest whole number of most fields."""
BOUND = "x-bound"
"""Placeholder in a schema for a limit that depends on the served model. The OpenAPI document has the limit instead."""


def _parse_prompts(value: Any) -> tuple[Prompt, ...]:
    match value:
        case [str() | list(), *_]:
            if len(value) > MAX_CHOICES:
                raise FieldInvalid(f"prompt takes at most {MAX_CHOICES} prompts, got {len(value)}", "prompt")
            return tuple(_parse_prompt(each) for each in value)
    return (_parse_prompt(value),)


def _parse_prompt(value: Any) -> Prompt:
    match value:
        case str():
            return TextPrompt(value)
        case list():
            return TokenPrompt(_parse_ids(value, "prompt"))
    raise FieldInvalid("prompt must be a string or a list of token ids, or a list of these", "prompt")


def _parse_ids(value: list[Any], param: str) -> tuple[int, ...]:
    for index, token in enumerate(value):
        if type(token) is not int:
            raise FieldInvalid(f"{param}[{index}] must be a token id, an integer", param)
    return tuple(value)


def _distinct_ids(ids: list[int], info: ValidationInfo) -> tuple[int, ...]:
    """Check the range before the ids are compared: huge numbers can be chosen to have one hash."""
    check_ids(ids, info.field_name or "", MAX_INT + 1)
    return tuple(dict.fromkeys(ids))


def _parse_stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return unique_stops(value)
    raise FieldInvalid("stop must be a string or a list of strings", "stop")


def _parse_content(param: str, value: Any) -> str:
    match value:
        case str():
            return value
        case list() if all(isinstance(part, dict | str) for part in value):
            return "".join(part if isinstance(part, str) else _parse_part(param, part) for part in value)
    raise FieldInvalid(f"{param}: content must be a string or a list of text parts", param)


def _parse_part(param: str, part: dict[str, Any]) -> str:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)} | {
            "type": "refusal",
            "refusal": str(text),
        }:
            return text
        case {"type": "thinking" | "redacted_thinking" | "reasoning"}:
            return ""
        case {"type": str(kind)} if kind != "text":
            raise UnsupportedParameter(f"{param}: content of type {kind!r} is not supported", param)
    raise FieldInvalid(f"{param}: a content part must have a type and a text", param)


def _off(value: bool) -> bool:
    """Accept nothing but False; a literal type would accept 0, too, which can be a number that asks for something."""
    if value:
        raise ValueError("must be false")
    return value


def _whole(minimum: int, maximum: int = MAX_INT, bound: str = "") -> dict[str, Any]:
    """The schema of a whole number; `bound` names a narrower limit that the running gateway knows."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum} | ({BOUND: bound} if bound else {})


_TOKEN_SCHEMA = _whole(0, bound="token")
_TOKENS_SCHEMA = {"type": "array", "items": _TOKEN_SCHEMA, "minItems": 1}
_ONE: list[dict[str, Any]] = [{"type": "string", "minLength": 1}, _TOKENS_SCHEMA]
_SEVERAL = {"type": "array", "items": {"anyOf": _ONE}, "minItems": 1, "maxItems": MAX_CHOICES}
Prompts = Annotated[tuple[Prompt, ...], PlainValidator(_parse_prompts), WithJsonSchema({"anyOf": [*_ONE, _SEVERAL]})]
# Ranges in a schema are for the API's description; where there is no Field, GenerationRequest checks the value.
Choices = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_OF_PROMPT})]
Lenience = Annotated[float, WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1})]
BeamWidth = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_WIDTH})]
LengthPenalty = Annotated[float, WithJsonSchema({"type": "number", "minimum": -10, "maximum": 10})]
Logprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
Length = Annotated[int, WithJsonSchema(_whole(-1, bound="context"))]
"""Most tokens of an output; -1 for as many as there is room for."""
Truncation = Annotated[int, Field(ge=-1, le=MAX_INT), WithJsonSchema({"anyOf": [{"const": -1}, _whole(1)]})]
Natural = Annotated[int, WithJsonSchema(_whole(0))]
Count = Annotated[int, Field(ge=0, le=MAX_INT)]
TokenId = Annotated[int, WithJsonSchema(_TOKEN_SCHEMA)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
"""A list of any length, whose first mistake is its only one: a list of a million may hold a million."""
ModelName = Annotated[str, WithJsonSchema({"type": "string", BOUND: "model"})]
Name = Annotated[str, WithJsonSchema({"type": "string", "maxLength": MAX_NAME})]
CacheSalt = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Unread = Annotated[str, Field(max_length=MAX_NAME)]
"""A text that nothing here reads."""
_Value = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], _Value], Field(max_length=16)]
"""OpenAI's bounds of `metadata`."""
TemplateArguments = Annotated[dict[str, Any], AfterValidator(check_arguments)]
"""Values that the caller gives the chat template."""
SessionId = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{32}$"})]
Ids = Annotated[TokenIds, Field(max_length=MAX_IDS), AfterValidator(_distinct_ids)]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority"]
Role = Annotated[str, WithJsonSchema({"enum": ["system", "developer", "user", "assistant", "tool"]})]
_STOP_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
StopField = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_stop),
    WithJsonSchema(
        {
            "anyOf": [
                _STOP_SCHEMA,
                {"type": "array", "items": _STOP_SCHEMA, "maxItems": MAX_STOPS},
                {"type": "null"},
            ]
        }
    ),
]
_WORD = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_BAD_WORD_CHARS})]
BadWords = Annotated[list[_WORD], Field(max_length=MAX_BAD_WORDS, fail_fast=True)]
_POLICY_SCHEMA = {
    "type": "object",
    "properties": {
        "policy": {"enum": list(POLICIES)},
        "value": _whole(0, bound="gamma"),
        "min": _whole(1, bound="gamma"),
        "max": _whole(1, bound="gamma"),
        "ema": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        "min_confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["policy"],
}
GammaField = Annotated[
    tuple[int | None, GammaPolicy],
    PlainValidator(parse_gamma),
    WithJsonSchema({"anyOf": [_whole(0, bound="gamma"), {"enum": list(PolicyKind)}, _POLICY_SCHEMA, {"type": "null"}]}),
]
_PART_SCHEMA = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART_SCHEMA}]}
ContentField = Annotated[str, PlainValidator(partial(_parse_content, "messages")), WithJsonSchema(_CONTENT_SCHEMA)]
PredictedField = Annotated[str, PlainValidator(partial(_parse_content, "prediction")), WithJsonSchema(_CONTENT_SCHEMA)]
Nothing = Annotated[list[Any], Field(max_length=0)]
Off = Annotated[bool, AfterValidator(_off), WithJsonSchema({"const": False})]
JustOne = Annotated[int, Field(ge=1, le=1)]
JustZero = Annotated[int, Field(ge=0, le=0)]


class JsonSchemaBody(Body):
    """A named JSON Schema; it is always followed, `strict` or not."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None

    def form(self) -> tuple[str, Grammar] | None:
        """The grammar and the name of its field; None for any text."""
        if (self.json_schema is None) != (self.type != "json_schema"):
            raise FieldRequired(
                "response_format.json_schema belongs to type json_schema", "response_format.json_schema"
            )
        if self.type == "text":
            return None
        if self.json_schema is None:
            return "response_format", structured.json_schema({"type": "object"}, "response_format")
        name, schema = "response_format.json_schema.schema", self.json_schema.schema_
        return name, structured.json_schema({} if schema is None else schema, name)


class StructuredOutputs(Body):
    """vLLM's form of the output: exactly one of the first five."""

    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def forms(self, prefix: str) -> Iterator[tuple[str, Grammar]]:
        """Each grammar that is given, with the name of its field, which begins with `prefix`."""
        schema = {"type": "object"} if self.json_object else self.json_
        if schema is not None:
            name = f"{prefix}{'json_object' if self.json_object else 'json'}"
            options: dict[str, Any] = {
                "compact": bool(self.disable_any_whitespace),
                "closed": bool(self.disable_additional_properties),
                "whitespace": self.whitespace_pattern,
            }
            yield name, structured.json_schema(schema, name, **options)
        if self.json_object and self.json_ is not None:
            yield f"{prefix}json", structured.json_schema(self.json_, f"{prefix}json")
        if self.regex is not None:
            yield f"{prefix}regex", structured.regex(self.regex, f"{prefix}regex")
        if self.choice is not None:
            yield f"{prefix}choice", structured.choice(self.choice, f"{prefix}choice")
        if self.grammar is not None:
            yield f"{prefix}grammar", structured.context_free(self.grammar, f"{prefix}grammar")


class StructuredBody(Body):
    """The fields of both kinds of completion that give the output a form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    def form(self) -> tuple[str, Grammar] | None:
        """The grammar that the output must follow and the name of its field; None for any text.

        Raises:
            FieldInvalid: more than one is given, or none where there is a field for one.
        """
        guided = StructuredOutputs.model_construct(
            json_=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
            whitespace_pattern=self.guided_whitespace_pattern,
        )
        own = list(self.structured_outputs.forms("structured_outputs.")) if self.structured_outputs else []
        if self.structured_outputs and len(own) != 1:
            raise FieldInvalid("structured_outputs takes exactly one form", "structured_outputs")
        openai = self.response_format.form() if self.response_format else None
        forms = [*([openai] if openai else []), *own, *guided.forms("guided_")]
        if len(forms) > 1:
            raise FieldInvalid(f"{forms[1][0]}: {forms[0][0]} gives the output another form; give one", forms[1][0])
        return forms[0] if forms else None

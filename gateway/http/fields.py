"""Field types of the HTTP API: a value that callers may write in several ways is read into the one that is used."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from gateway.request import MAX_CHOICES, MAX_IDS, MAX_STOPS, Prompt, TextPrompt, TokenPrompt, unique_stops
from specdec.errors import FieldInvalid, UnsupportedParameter
from specdec.rules.params import MAX_LOGPROBS


def _parse_prompt(value: Any) -> Prompt:
    match value:
        case str():
            return TextPrompt(value)
        case [str(text)]:
            return TextPrompt(text)
        case [list(ids)]:
            return TokenPrompt(_parse_ids(ids, "prompt"))
        case [str() | list(), *_]:
            raise UnsupportedParameter("prompt: several prompts in one request are not supported", "prompt")
        case list():
            return TokenPrompt(_parse_ids(value, "prompt"))
    raise FieldInvalid("prompt must be a string or a list of token ids", "prompt")


def _parse_ids(value: list[Any], param: str) -> tuple[int, ...]:
    for index, token in enumerate(value):
        if type(token) is not int:
            raise FieldInvalid(f"{param}[{index}] must be a token id, an integer", param)
    return tuple(value)


def _parse_stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return unique_stops(value)
    raise FieldInvalid("stop must be a string or a list of strings", "stop")


def _parse_gamma(value: Any) -> int | None:
    if value is None or value == "auto":
        return None
    if type(value) is int:
        return value
    raise FieldInvalid('speculation.gamma must be an integer or "auto"', "speculation.gamma")


def _parse_content(value: Any) -> str:
    match value:
        case str():
            return value
        case list() if all(isinstance(part, dict) for part in value):
            return "".join(_parse_part(part) for part in value)
    raise FieldInvalid("messages: content must be a string or a list of text parts", "messages")


def _parse_part(part: dict[str, Any]) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise UnsupportedParameter(f"messages: content of type {kind!r} is not supported", "messages")
    raise FieldInvalid("messages: a content part must have a type and a text", "messages")


def _off(value: bool) -> bool:
    """Accept nothing but False; a literal type would accept 0, too, which can be a number that asks for something."""
    if value:
        raise ValueError("must be false")
    return value


def _on(value: bool) -> bool:
    if not value:
        raise ValueError("must be true")
    return value


def _only(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a list with one item of these kinds, which means the same as the item alone."""
    return {"type": "array", "items": {"anyOf": kinds}, "minItems": 1, "maxItems": 1}


_TOKENS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_ONE: list[dict[str, Any]] = [{"type": "string", "minLength": 1}, _TOKENS_SCHEMA]
PromptField = Annotated[Prompt, PlainValidator(_parse_prompt), WithJsonSchema({"anyOf": [*_ONE, _only(_ONE)]})]
# Ranges in a schema are for the API's description; where there is no Field, GenerationRequest checks the value.
Choices = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_CHOICES})]
Lenience = Annotated[float, WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 1})]
Logprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
AtLeastOne = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})]
Natural = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Naturals = Annotated[list[Natural], Field(fail_fast=True)]
"""A list of any length, whose first mistake is its only one: a list of a million may hold a million."""
Ids = Annotated[Naturals, Field(max_length=MAX_IDS), AfterValidator(lambda ids: tuple(dict.fromkeys(ids)))]
Role = Annotated[str, WithJsonSchema({"enum": ["system", "developer", "user", "assistant", "tool"]})]
StopField = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_stop),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MAX_STOPS},
                {"type": "null"},
            ]
        }
    ),
]
GammaField = Annotated[
    int | None,
    PlainValidator(_parse_gamma),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "auto"}, {"type": "null"}]}),
]
_PART_SCHEMA = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
ContentField = Annotated[
    str,
    PlainValidator(_parse_content),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _PART_SCHEMA}]}),
]
Nothing = Annotated[list[Any], Field(max_length=0)]
Off = Annotated[bool, AfterValidator(_off), WithJsonSchema({"const": False})]
On = Annotated[bool, AfterValidator(_on), WithJsonSchema({"const": True})]
JustOne = Annotated[int, Field(ge=1, le=1)]
JustZero = Annotated[int, Field(ge=0, le=0)]

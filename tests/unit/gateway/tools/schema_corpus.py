"""JSON Schemas as libraries write them: pydantic, zod, and custom resources of Kubernetes."""

from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, IPvAnyAddress, SecretStr


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)] = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, Field(pattern=r"^[A-Z][a-z]{0,5}$")]


class Tree(BaseModel):
    value: bool
    left: Optional["Tree"] = None
    right: Optional["Tree"] = None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: UUID
    amount: Decimal
    colour: Colour
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    tags: Annotated[list[Annotated[str, Field(max_length=4)]], Field(max_length=2)]
    at: AwareDatetime | None = None
    secret: SecretStr | None = None
    address: IPvAnyAddress | None = None
    scores: dict[str, Annotated[float, Field(gt=0, lt=1e30)]] = {}
    pair: tuple[int, bool] = (1, True)


def _pydantic_decimal(pattern: str) -> dict[str, Any]:
    amount = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": pattern}], "title": "Amount"}
    return {"type": "object", "properties": {"amount": amount}, "required": ["amount"], "title": "Price"}


def _object(**properties: Any) -> dict[str, Any]:
    """A strict object, as zod writes it."""
    names = list(properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


_FLAG, _DIGIT = {"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 9}
_INT64 = 2**63

SCHEMAS: Mapping[str, Any] = {
    "pydantic: order": Order.model_json_schema(),
    "pydantic: tree": Tree.model_json_schema(),
    "pydantic: decimal": _pydantic_decimal(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"),
    "pydantic: decimal of six digits": _pydantic_decimal(
        r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,4}|(?=[\d.]{1,7}0*$)\d{0,4}\.\d{0,2}0*$)"
    ),
    "zod: strict": _object(a={"type": "string", "minLength": 1, "maxLength": 5}, b={"type": ["number", "null"]}),
    "zod: safe integer": _object(a={"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1}),
    "zod: int64": _object(a={"type": "integer", "format": "int64", "minimum": -_INT64, "maximum": _INT64 - 1}),
    "zod: record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": _DIGIT},
    "zod: union": _object(a={"anyOf": [{"const": "x"}, {"const": 2.5}, {"type": "null"}]}),
    "zod: not blank": _object(a={"type": "string", "pattern": r"^(?!\s*$).+", "maxLength": 6}),
    "zod: password": _object(a={"type": "string", "pattern": r"^(?=.*\d)(?=.*[a-z]).{2,8}$"}),
    "crd: scale": {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": False,
        "properties": {
            "apiVersion": {"type": "string", "enum": ["autoscaling/v1"]},
            "kind": {"type": "string", "enum": ["Scale"]},
            "metadata": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 8},
                    "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}},
                },
                "required": ["name"],
            },
            "spec": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer", "format": "int32", "minimum": 0},
                    "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                    "items": {
                        "type": "array",
                        "items": {"type": "object", "properties": {"data": {"type": "string", "format": "byte"}}},
                        "x-kubernetes-list-type": "map",
                        "maxItems": 2,
                    },
                },
                "nullable": True,
            },
        },
        "required": ["apiVersion", "kind", "metadata"],
    },
    "few names by patterns": {
        "type": "object",
        "properties": {"score": {"maximum": 5}, "b": {"const": 2}},
        "required": ["score"],
        "patternProperties": {"^score$": _DIGIT, "^(a|b)$": {"type": "integer"}, "^[xy]z?$": _FLAG},
        "additionalProperties": False,
    },
    "names by a pattern": {"type": "object", "patternProperties": {"^x-": _FLAG}, "additionalProperties": False},
    "a pattern over a property": {"properties": {"score": _DIGIT}, "patternProperties": {"^s": {"minimum": 5}}},
    "at least one": {**_object(a=_FLAG, b=_FLAG), "required": [], "minProperties": 1},
    "few properties": {"type": "object", "additionalProperties": _FLAG, "maxProperties": 2},
    "bounds of a double": _object(a={"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1e30}),
    "a property that is false": {"type": "object", "properties": {"a": False, "b": _DIGIT}},
    "items that contradict": {"type": "array", "items": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
    "branches that contradict": {"anyOf": [_object(a={"allOf": [_FLAG, _DIGIT]}), _object(b=_FLAG)]},
    "itself": {"$defs": {"n": _object(n={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})}, "$ref": "#/$defs/n"},
}

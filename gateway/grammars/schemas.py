"""Rewrites JSON Schemas with the keywords that the grammar library supports, for the same values or a subset.

Keywords without effect are removed. Unsupported keywords with an effect stay, so that the library refuses them by name.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from gateway.grammars.patterns import names_of, without_lookahead
from specdec.errors import FieldInvalid
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES

_MOST = 2**63 - 1024
"""Largest numeric bound that the library supports."""
_MOST_PATTERNS = 64
"""Most entries of `patternProperties` in one schema."""
_DEPTH = 200
"""Deepest nesting of schemas to rewrite; the library refuses deeper ones."""
_FORMATS = (
    *("date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"),
    *("uri", "uri-reference", "iri", "iri-reference", "uri-template", "uuid", "json-pointer"),
    *("relative-json-pointer", "regex"),
)
"""String formats defined by the standard; any other is an annotation."""
_STEP = 1e-6
"""Distance of a bound from the number that it excludes, where the library would allow that number."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")

Schema = dict[str, Any]


def simplified(schema: Any, path: str, depth: int = 0) -> Any:
    """Return a schema with supported keywords.

    Args:
        schema: schema to rewrite.
        path: path of the schema, for error messages.
        depth: nesting depth of the schema.

    Raises:
        FieldInvalid: the library could complete values that violate the schema, or the result is too long.
    """
    if not isinstance(schema, dict) or depth > _DEPTH:
        return schema
    found = {name: value for name, value in schema.items() if not _says_nothing(name, value, schema)}
    found = _with_parts(found, lambda part, place: simplified(part, f"{path}.{place}", depth + 1))
    _bound(found)
    _exclude_bounds(found)
    _rewrite_pattern(found)
    _name_properties(found, path)
    _check_counts(found, path)
    return found


def with_named_only(schema: Any, depth: int = 0) -> Any:
    """Return a schema whose objects with named properties have no others, unless the schema says otherwise."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return schema
    found = _with_parts(schema, lambda part, _: with_named_only(part, depth + 1))
    names = "properties" in found or "patternProperties" in found
    return ({"additionalProperties": False} if names else {}) | found


def _with_parts(schema: Schema, change: Callable[[Any, str], Any]) -> Schema:
    """Return a copy with the result of `change` in place of each inner schema; it takes the schema and its place."""
    found = dict(schema)
    for name in _LISTS:
        if isinstance(found.get(name), list):
            found[name] = [change(part, f"{name}[{index}]") for index, part in enumerate(found[name])]
    for name in _MAPS:
        if isinstance(found.get(name), dict):
            found[name] = {key: change(part, f"{name}.{key}") for key, part in found[name].items()}
    return found | {name: change(found[name], name) for name in _ONE if name in found}


def check_length(value: Any, path: str, copies: int = 1) -> None:
    """Raise FieldInvalid if the JSON text of some copies of a value is certainly over MAX_GRAMMAR_BYTES.

    Values shared by several schemas count each time, as in the text. The walk ends at the bound.
    """
    rest, size = [value], 0
    while rest:
        each = rest.pop()
        size += 1
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, dict):
            size += 4 * len(each) + sum(map(len, each))
            rest += each.values()
        elif isinstance(each, list):
            rest += each
        if size * copies > MAX_GRAMMAR_BYTES:
            raise FieldInvalid(f"{path} may have {MAX_GRAMMAR_BYTES} bytes, it has more", path)


def _says_nothing(name: str, value: Any, schema: Mapping[str, Any]) -> bool:
    nothing = _NOTHING.get(name)
    return nothing is not None and nothing(value, schema)


def _is_any(value: Any) -> bool:
    """Whether a schema allows every value."""
    return value is True or value == {}


_NOTHING: Mapping[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "uniqueItems": lambda value, _: value is False,
    "format": lambda value, schema: value not in _FORMATS or schema.get("type") in ("integer", "number", "boolean"),
    "propertyNames": lambda value, _: _is_any(value) or value == {"type": "string"},
    "unevaluatedProperties": lambda value, _: _is_any(value),
    "unevaluatedItems": lambda value, _: _is_any(value),
    "dependentRequired": lambda value, _: value == {} or (isinstance(value, dict) and not any(value.values())),
    "dependentSchemas": lambda value, _: value == {} or (isinstance(value, dict) and all(map(_is_any, value.values()))),
    "dependencies": lambda value, _: value == {},
    "not": lambda value, _: value is False,
    "contains": lambda _, schema: schema.get("minContains") == 0 and "maxContains" not in schema,
    "minContains": lambda value, schema: "contains" not in schema or (value == 0 and "maxContains" not in schema),
    "maxContains": lambda _, schema: "contains" not in schema,
    "if": lambda _, schema: _is_any(schema.get("then", True)) and _is_any(schema.get("else", True)),
    "then": lambda value, schema: "if" not in schema or _is_any(value),
    "else": lambda value, schema: "if" not in schema or _is_any(value),
    "minLength": lambda value, _: value == 0,
    "minItems": lambda value, _: value == 0,
    "minProperties": lambda value, _: value == 0,
    "patternProperties": lambda value, _: value == {},
}
"""Predicates by keyword: whether it has no effect, given its value and the whole schema."""


def _bound(schema: Schema) -> None:
    """Clamp bounds beyond the supported range; larger numbers are never generated."""
    for name in _BOUNDS:
        value = schema.get(name)
        if _is_number(value):
            far = value > _MOST if name.endswith("aximum") else value < -_MOST
            if far:
                schema[name] = _MOST if value > 0 else -_MOST


def _exclude_bounds(schema: Schema) -> None:
    """Move an excluded whole number inwards where the other bound is near it: the library allows it as an integer."""
    if schema.get("type") == "integer":
        return
    for exclusive, inclusive, step in (("exclusiveMinimum", "minimum", _STEP), ("exclusiveMaximum", "maximum", -_STEP)):
        bound = schema.get(exclusive)
        others = [schema[name] for name in _BOUNDS if name != exclusive and _is_usual(schema.get(name))]
        if _is_usual(bound) and bound % 1 == 0 and any(abs(other - bound) < 1 for other in others):
            del schema[exclusive]
            moved = (bound + step, *(schema[name] for name in [inclusive] if _is_usual(schema.get(name))))
            schema[inclusive] = max(moved) if step > 0 else min(moved)


def _is_usual(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number that float arithmetic can handle: no infinity, NaN or huge integer."""
    return _is_number(value) and abs(value) <= _MOST


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rewrite_pattern(schema: Schema) -> None:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        first, *others = without_lookahead(pattern)
        known = schema.get("allOf", [])
        if others and isinstance(known, list):
            schema["pattern"] = first
            schema["allOf"] = [*known, *({"pattern": other} for other in others)]


def _name_properties(schema: Schema, path: str) -> None:
    """Expand name patterns that match few names to properties, because the library does not track pattern names.

    No name is then generated twice, or once more after `properties` has it.

    Raises:
        FieldInvalid: there are too many patterns, or their names make the schema too long.
    """
    patterns = schema.get("patternProperties")
    if not isinstance(patterns, dict) or not isinstance(schema.get("properties", {}), dict):
        return
    if len(patterns) > _MOST_PATTERNS:
        place = f"{path}.patternProperties"
        raise FieldInvalid(f"{place} takes at most {_MOST_PATTERNS} patterns, got {len(patterns)}", place)
    properties = dict(schema.get("properties", {}))
    for pattern, value in list(patterns.items()):
        names = names_of(pattern)
        if names is not None:
            check_length(value, path, len(names))
            properties |= {name: _both(properties[name], value) if name in properties else value for name in names}
            del patterns[pattern]
    schema["properties"] = properties
    if not patterns:
        del schema["patternProperties"]


def _both(one: Any, other: Any) -> Any:
    return one if one == other or _is_any(other) else {"allOf": [one, other]}


def _check_counts(schema: Schema, path: str) -> None:
    """Raise FieldInvalid if several free names are required: the library would count a repeated name twice."""
    least, required = schema.get("minProperties"), schema.get("required", ())
    if isinstance(least, int) and isinstance(required, list | tuple) and least > max(1, len(required)):
        place = f"{path}.minProperties"
        raise FieldInvalid(f"{place}: more than one property that `required` does not name cannot be asked for", place)

"""Generations that must follow a schema, against a running system: counts of invalid and of truncated answers.

    python -m benchmarks.structured --url http://127.0.0.1:8000 --generations 10000

An answer that ended by itself must be JSON of its schema. An answer cut at its token limit may be a prefix of such
JSON. Anything else counts as invalid, and the command fails.
"""

import argparse
import json
import sys
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Schema = Mapping[str, Any]
STRING = {"type": "string", "maxLength": 8}
SCHEMAS: Sequence[Schema] = (
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer", "minimum": -20, "maximum": 300},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"enum": ["red", "green", "blue", 3, None]},
    {"const": {"version": 1}},
    {"type": "string", "minLength": 2, "maxLength": 6},
    {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"},
    {"type": "string", "format": "date"},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "boolean"}, STRING], "items": False, "minItems": 2},
    {"type": "object", "properties": {"name": STRING}, "required": ["name"], "additionalProperties": False},
    {
        "type": "object",
        "properties": {"name": STRING, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": {"type": "null"}, "b": STRING}, "additionalProperties": False},
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, STRING]},
    {"oneOf": [{"const": "yes"}, {"const": "no"}]},
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "boolean"},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            },
            "leaf": {"enum": ["end", "more"]},
        },
    },
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {
        "allOf": [
            {"type": "object", "properties": {"x": {"type": "integer", "maximum": 5, "minimum": 0}}, "required": ["x"]},
            {"type": "object", "properties": {"y": {"type": "boolean"}}, "required": ["y"]},
        ],
        "additionalProperties": False,
        "properties": {"x": {}, "y": {}},
    },
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["id"],
            "additionalProperties": False,
        },
        "maxItems": 3,
    },
)
"""Twenty kinds of JSON schemas."""
MODES = ("rejection", "block", "coupled", "off")


def body(number: int, max_tokens: int) -> dict[str, Any]:
    """Return a generation's request.

    Schemas and modes rotate, and the temperature is high enough for errors without a mask.
    """
    name = {"name": "answer", "strict": True, "schema": SCHEMAS[number % len(SCHEMAS)]}
    return {
        "prompt": f"value_{number % 7} = ",
        "max_tokens": max_tokens,
        "temperature": 1.3,
        "seed": number,
        "speculation": {"mode": MODES[(number + number // len(SCHEMAS)) % len(MODES)]},
        "response_format": {"type": "json_schema", "json_schema": name},
    }


def verdict(schema: Schema, answer: Mapping[str, Any]) -> str:
    """Return `valid`, `length` for a truncated answer, or the error."""
    from jsonschema import Draft202012Validator

    (choice,) = answer["choices"]
    if choice["finish_reason"] == "length":
        return "length"
    try:
        value = json.loads(choice["text"])
    except ValueError:
        return f"invalid: not JSON: {choice['text']!r}"
    error = next(Draft202012Validator(schema).iter_errors(value), None)
    return "valid" if error is None else f"invalid: {error.message}"


def run(url: str, numbers: Sequence[int], at_once: int, max_tokens: int) -> Counter[str]:
    """Count the verdicts. An interrupt ends the run and returns the counts so far."""

    def one(number: int) -> str:
        content = json.dumps(body(number, max_tokens)).encode()
        request = urllib.request.Request(f"{url}/v1/completions", content, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return verdict(SCHEMAS[number % len(SCHEMAS)], json.loads(reply.read()))

    verdicts: Counter[str] = Counter()
    threads = ThreadPoolExecutor(at_once)
    try:
        for found in threads.map(one, numbers):
            verdicts[found] += 1
    except KeyboardInterrupt:  # the counts so far are worth showing
        threads.shutdown(cancel_futures=True)
    return verdicts


def main() -> int:
    """Print the verdicts. Return 1 if one is invalid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--generations", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one, to go on after an interruption")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    verdicts = run(given.url, range(given.first, given.generations), given.at_once, given.max_tokens)
    for found, count in verdicts.most_common():
        sys.stdout.write(f"{count:6} {found}\n")
    return int(any(found.startswith("invalid") for found in verdicts))


if __name__ == "__main__":
    sys.exit(main())

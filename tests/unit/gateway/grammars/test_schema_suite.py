"""Complete outputs of the schemas of the JSON Schema test suite are valid, or the schema is refused by name."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gateway.grammars.structured import json_schema
from specdec.errors import FieldInvalid
from tests.unit.gateway.grammars.walks import walk

ROOT = Path(__file__).parents[4]
SUITE = ROOT / "build" / "node" / "node_modules" / "json-schema-test-suite" / "tests" / "draft4"
WALKS = 8
ELSEWHERE = "http:"
"""Schemas with such a reference need the network."""
REFUSED = {"dependencies", "not", "oneOf", "patternProperties", "uniqueItems"}
"""Files with schemas whose keywords the grammar library cannot follow."""

pytestmark = pytest.mark.skipif(not SUITE.is_dir(), reason="`make node-clients` fetches the suite, and needs npm")


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the file and the schema of each group of the suite."""
    for path in sorted(SUITE.rglob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            if ELSEWHERE not in json.dumps(group["schema"]):
                yield path.stem, group["schema"]


def exactly(text: str) -> Any:
    """Parse JSON with decimal numbers, which a validator divides without an error."""
    return json.loads(text, parse_float=Decimal)


@pytest.mark.parametrize(("file", "schema"), list(schemas()))
def test_what_ends_is_of_the_schema_of_the_suite(file: str, schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft4Validator(exactly(json.dumps(schema)))
    try:
        grammar = json_schema(schema, "schema")
        texts = [text for seed in range(WALKS) if (text := walk(grammar, seed)) is not None]
    except FieldInvalid:
        assert file in REFUSED
        return
    assert texts
    for text in texts:
        validator.validate(exactly(text))

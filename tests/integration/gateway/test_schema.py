"""The gateway matches its OpenAPI description: schemathesis generates valid and invalid requests from it.

No answer is a 5xx or has a status missing from the description, and no request that the schema allows is refused.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import ScriptedVerifier, facts

EXAMPLES = 4
"""Number of requests of each kind for each operation."""
CHECKS = "not_a_server_error,status_code_conformance,response_schema_conformance,allowed_requests_are_taken"
SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"


@pytest.fixture
async def roomy() -> AsyncIterator[Stage]:
    """A gateway over a model with a long context."""
    async with stage(ScriptedVerifier(info=facts(context_length=1_000_000)), max_body_bytes=2**22) as made:
        yield made


async def test_requests_made_of_the_description_are_answered_as_it_says(roomy: Stage, tmp_path: Path) -> None:
    options = ["--phases", "fuzzing", "--mode", "all", "--max-examples", str(EXAMPLES), "--seed", "1"]
    options += [
        "--checks",
        CHECKS,
        "--generation-database",
        "none",
        "--no-color",
        "--exclude-path-regex",
        "^/v1/(de)?tok",
    ]
    schemathesis = await asyncio.create_subprocess_exec(
        SCHEMATHESIS,
        "run",
        f"{roomy.url}/openapi.json",
        *options,
        cwd=tmp_path,
        env=os.environ | {"SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("schema_checks.py"))},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await schemathesis.communicate()
    assert schemathesis.returncode == 0, told.decode()
    assert "generated" in told.decode()


async def test_the_description_has_the_limits_of_the_model(roomy: Stage) -> None:
    async with httpx2.AsyncClient() as client:
        description = (await client.get(f"{roomy.url}/openapi.json")).json()
    bodies = description["components"]["schemas"]
    completion = bodies["CompletionBody"]["properties"]
    assert completion["max_tokens"]["anyOf"][0]["maximum"] == 999_999
    assert completion["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == 256
    assert completion["model"]["anyOf"][0]["enum"] == ["bytes"]
    assert bodies["SpeculationBody"]["properties"]["gamma"]["anyOf"][0]["maximum"] == 8
    assert "x-bound" not in str(description)

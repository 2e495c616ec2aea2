"""Third-party clients in another language: OpenAI's for Node over HTTP, and Node's gRPC built from the protos."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway.stage import stage
from tests.integration.gateway.writing_tool import CALL
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts

ROOT = Path(__file__).parents[3]
MODULES = ROOT / "build" / "node" / "node_modules"
TEXT = Script().text
AI_DOORS = ("chat", "openai chat", "openai responses")
"""APIs that Vercel's AI SDK uses."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here"),
    pytest.mark.skipif(not MODULES.is_dir(), reason="`make node-clients` fetches the packages, and needs npm"),
]


async def told(tmp_path: Path, script: str, *arguments: str) -> dict[str, Any]:
    """Run a script beside its packages and return the JSON that it prints."""
    shutil.copy(Path(__file__).with_name(script), tmp_path)
    (tmp_path / "node_modules").symlink_to(MODULES)
    node = await asyncio.create_subprocess_exec(
        "node",
        str(tmp_path / script),
        *arguments,
        env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await asyncio.wait_for(node.communicate(), 120)
    assert node.returncode == 0, error.decode()
    found: dict[str, Any] = json.loads(out)
    return found


async def test_openai_for_node(tmp_path: Path) -> None:
    async with stage() as here:
        assert await told(tmp_path, "openai.mjs", here.url) == {
            "texts": [TEXT, TEXT],
            "streamed": TEXT,
            "tokens": 14,
            "refused": [400, "temperature"],
            "models": ["bytes"],
        }


@pytest.mark.skipif(not (MODULES / "ai").is_dir(), reason="`make node-clients` fetches Vercel's AI SDK, and needs npm")
async def test_agents_of_ten_turns_with_cut_calls(tmp_path: Path) -> None:
    verifier = ScriptedVerifier(script=Script(text=f"Well. {CALL}"), info=facts(context_length=60_000))
    async with stage(verifier) as here:
        told_of = await told(tmp_path, "agents.mjs", here.url)
    assert told_of == dict.fromkeys(("openai", "anthropic", *(f"ai {each}" for each in AI_DOORS)), 10)


async def test_grpc_for_node(tmp_path: Path) -> None:
    async with stage() as here:
        assert await told(tmp_path, "grpc.mjs", here.gateway.grpc, str(ROOT)) == {
            "texts": [TEXT, TEXT],
            "streamed": TEXT,
            "events": 6,
            "refused": "INVALID_ARGUMENT",
        }

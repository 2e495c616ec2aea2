"""Blocks of KV in a connector that ships with vLLM: a prompt moves between verifiers without being computed again.

Two verifiers run after another with one shared folder. The first one is killed when its readers have left unfinished
answers.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.served_pair import Done, generate, running_drafter, running_verifier
from tests.vllm.moved_sessions import BLOCK, COUNT, DEMO, KINDS, TOKENS, asks_of, beginnings
from tests.vllm.server import HAS_VLLM, vllm_verifier

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Seen:
    """The answers of all verifiers."""

    native: dict[str, list[Done]]
    begun: dict[str, list[tuple[int, ...]]]
    """Tokens that the clients of the first verifier had when it was killed."""
    rest: dict[str, list[Done]]
    """The rest of the answers, from the second verifier."""
    fingerprints: tuple[str, str, str]
    """Fingerprints of both verifiers and of the native one."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_seen(tmp_path_factory.mktemp("connector")))


async def _seen(folder: Path) -> Seen:
    store = folder / "store"
    store.mkdir()
    async with running_drafter(DEMO / "drafter") as drafts:
        async with running_verifier(DEMO / "target", drafts.address, kv_bytes=2**27) as client:
            native = {name: await generate(client, asks_of(name), COUNT) for name in KINDS}
            fingerprints = [(await client.info()).system_fingerprint]
        begun = dict[str, list[tuple[int, ...]]]()
        async with vllm_verifier(DEMO / "target", folder, drafts.address, **_settings(store)) as first:
            fingerprints.append((await first.client.info()).system_fingerprint)
            for name in KINDS:
                begun[name] = await beginnings(first.client, asks_of(name))
            first.kill()
        async with vllm_verifier(DEMO / "target", folder, drafts.address, **_settings(store)) as second:
            rest = {name: await generate(second.client, asks_of(name, begun[name]), COUNT) for name in KINDS}
            fingerprints.append((await second.client.info()).system_fingerprint)
    return Seen(native, begun, rest, (fingerprints[1], fingerprints[2], fingerprints[0]))


def _settings(store: Path) -> dict[str, Any]:
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(store)},
    }
    return {"kv_bytes": 2**27, "vllm": {"engine_args": {"kv_transfer_config": connector}}}


@pytest.mark.parametrize("name", KINDS)
def test_a_moved_session_goes_on_with_the_same_tokens(name: str, seen: Seen) -> None:
    whole = [begun + done.tokens for begun, done in zip(seen.begun[name], seen.rest[name], strict=True)]
    assert whole == [done.tokens for done in seen.native[name]]
    assert all(0 < len(tokens) < TOKENS for tokens in seen.begun[name])


@pytest.mark.parametrize("name", KINDS)
def test_a_moved_session_finds_the_blocks_of_its_prompt(name: str, seen: Seen) -> None:
    assert [done.rounds[0].cached_tokens for done in seen.rest[name]] == [2 * BLOCK] * COUNT


def test_a_connector_changes_no_fingerprint(seen: Seen) -> None:
    assert len(set(seen.fingerprints)) == 1

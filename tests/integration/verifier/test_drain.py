"""A verifier that is asked to stop loses no tokens."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from specdec.errors import Draining, SpecdecError
from specdec.serving.rpc.status import from_rpc_error
from specdec.wire.tokens import tokens_from_bytes
from tests.integration.verifier.client import Client, connected
from tests.integration.verifier.target import PROMPT, Target
from verifier_service.app import Running, verifier
from verifier_service.config import VerifierSettings

LONG = 100


async def serving(target: Target, stack: AsyncExitStack) -> tuple[Running, Client]:
    overrides = {
        "model": {"path": target.folder, "device": "cpu"},
        "address": "127.0.0.1:0",
        "http": "127.0.0.1:0",
        "kv_bytes": 2**22,
    }
    running = await stack.enter_async_context(verifier(VerifierSettings.load(None, overrides)))
    return running, await stack.enter_async_context(connected(running.address))


async def refusal(call: object) -> SpecdecError | None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return from_rpc_error(caught.value)


async def test_what_runs_is_finished_and_nothing_new_is_taken(target: Target) -> None:
    async with AsyncExitStack() as stack:
        running, client = await serving(target, stack)
        rounds = aiter(client.call(max_tokens=LONG))
        tokens = tokens_from_bytes((await anext(rounds)).tokens)
        draining = asyncio.create_task(running.drain(60.0))
        await asyncio.sleep(0)
        assert isinstance(await refusal(client.info()), Draining)
        assert isinstance(await refusal(client.rounds(session="late")), Draining)
        async for done in rounds:
            tokens += tokens_from_bytes(done.tokens)
        await draining
    assert tokens == target.greedy(PROMPT, LONG)


async def test_what_is_not_done_in_time_is_told_so_after_its_last_round(target: Target) -> None:
    async with AsyncExitStack() as stack:
        running, client = await serving(target, stack)
        rounds = aiter(client.call(max_tokens=LONG))
        tokens = tokens_from_bytes((await anext(rounds)).tokens)
        draining = asyncio.create_task(running.drain(0.0))

        async def rest() -> None:
            async for done in rounds:
                tokens.extend(tokens_from_bytes(done.tokens))

        assert isinstance(await refusal(rest()), Draining)
        await draining
    assert len(tokens) < LONG
    assert tokens == target.greedy(PROMPT, LONG)[: len(tokens)]

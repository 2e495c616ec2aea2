"""The Python client with real gateways receives every token once, whichever gateway fails."""

import asyncio

import pytest

from gateway.config import DrainSettings
from specdec.client import Client, FinishedEvent, PromptRequest, Retries, RoundEvent
from specdec.errors import FieldInvalid, NoVerifier
from specdec.sampling.params import FinishReason
from tests.gateway_fakes import Script, ScriptedVerifier
from tests.integration.gateway.replicas import LONG, replicas
from tests.integration.gateway.stage import stage
from tests.integration.sessions.server import Server

pytestmark = pytest.mark.integration

REQUEST = PromptRequest("Say it", max_tokens=50)


async def test_a_prompt_gives_a_result() -> None:
    async with stage() as here:
        with Client(here.gateway.grpc) as client:
            result = await asyncio.to_thread(client.generate, REQUEST)
            again = await asyncio.to_thread(client.generate, "Say it")
    assert result.text == again.text == Script().text
    assert (result.finished.reason, result.finished.drafted, result.finished.accepted) == (FinishReason.STOP, 12, 11)


async def test_a_refusal_is_the_products_own_error_and_is_not_tried_again() -> None:
    async with stage() as here:
        with Client(here.gateway.grpc) as client, pytest.raises(FieldInvalid, match="temperature") as refused:
            await asyncio.to_thread(client.generate, PromptRequest("Say it", temperature=3.0))
        assert refused.value.param == "temperature"
        assert not here.verifier.calls


async def test_a_stream_goes_on_at_the_next_gateway(server: Server) -> None:
    verifier = ScriptedVerifier(script=LONG)
    async with replicas(server.url, verifier, drain=DrainSettings(limit=0.0), lease=3600.0) as pair:
        loop = asyncio.get_running_loop()

        def read() -> list[str]:
            texts = []
            with Client(*(each.gateway.grpc for each in pair), retries=Retries(first=0.01)) as client:
                for event in client.stream(REQUEST):
                    if isinstance(event, RoundEvent):
                        texts += [token.text for token in event.tokens]
                        if len(texts) == 4:
                            asyncio.run_coroutine_threadsafe(pair[0].gateway.drain(), loop).result()
                    elif isinstance(event, FinishedEvent):
                        texts.append(".")
            return texts

        assert "".join(await asyncio.to_thread(read)) == f"{LONG.text}."
    assert len(verifier.calls) == 2


async def test_a_request_that_no_gateway_takes_is_given_up() -> None:
    def ask() -> None:
        with Client("127.0.0.1:1", retries=Retries(attempts=2, first=0.01)) as client:
            client.generate(REQUEST)

    with pytest.raises(NoVerifier, match="no gateway answers"):
        await asyncio.to_thread(ask)

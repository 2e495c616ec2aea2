"""The Python client with real gateways receives every token once, whichever gateway fails."""

import asyncio
from dataclasses import replace

import pytest

from gateway.config import DrainSettings
from specdec.client import (
    AsyncClient,
    ChatMessage,
    Client,
    FinishedEvent,
    FunctionTool,
    OutputForm,
    PromptRequest,
    Retries,
    RoundEvent,
    StartedEvent,
)
from specdec.errors import FieldInvalid, ModelNotFound, NoVerifier, SessionNotFound
from specdec.sampling.params import FinishReason
from tests.integration.gateway.replicas import LONG, replicas
from tests.integration.gateway.stage import stage
from tests.integration.sessions.server import Server
from tests.support.gateway_fakes import Script, ScriptedVerifier

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


async def test_the_clients_of_threads_and_of_asyncio_answer_the_same() -> None:
    request = PromptRequest("Say it", max_tokens=50, n=2, seed=3, logprobs=2, detail=True)
    async with stage() as here, AsyncClient(here.gateway.grpc) as client:
        result = await client.generate(request)
        with Client(here.gateway.grpc) as other:
            again = await asyncio.to_thread(other.generate, request)
    assert [choice.text for choice in result.choices] == [choice.text for choice in again.choices]
    assert [choice.text for choice in result.choices] == [Script().text] * 2
    assert result.tokens == again.tokens
    assert all(token.logprobs is not None and len(token.logprobs.top) == 2 for token in result.tokens)
    assert result.started.prompt_token_ids == tuple(b"Say it")
    assert len(result.reports) == result.finished.rounds


async def test_a_conversation_with_tools_becomes_a_message() -> None:
    text = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    async with stage(ScriptedVerifier(script=Script(text=text))) as here, AsyncClient(here.gateway.grpc) as client:
        messages = (ChatMessage("system", "Be brief."), ChatMessage("user", "Look at it."))
        result = await client.generate(PromptRequest(messages, tools=(FunctionTool("look", "", schema),)))
    assert [(call.name, call.arguments) for call in result.message.tool_calls] == [("look", '{"at": "it"}')]
    assert result.message.tool_calls[0].id


async def test_a_form_and_penalties_arrive_at_the_verifier() -> None:
    form = OutputForm(choice=("Hello, world.", "no"))
    asked = PromptRequest("Say it", presence_penalty=0.5, top_k=4, prediction="Hello", structured_output=form)
    async with stage() as here, AsyncClient(here.gateway.grpc) as client:
        await client.generate(asked)
        (call,) = here.verifier.calls
    assert (call.sampling.presence_penalty, call.sampling.top_k) == (0.5, 4)
    assert call.sampling.grammar is not None
    assert bytes(call.speculation.prediction) == b"Hello"


async def test_sessions_are_made_continued_listed_and_deleted() -> None:
    async with stage() as here, AsyncClient(here.gateway.grpc) as client:
        made = await client.create_session(user="ann", ttl=60)
        await client.generate(PromptRequest("Say it", user="ann", session=made.id, expect_turn=0))
        assert (await client.session(made.id, "ann")).turn == 1
        second = await client.create_session(user="ann")
        page = await client.list_sessions("ann", page_size=1)
        rest = await client.list_sessions("ann", page_token=page.next_page_token)
        assert {each.id for each in (*page.sessions, *rest.sessions)} == {made.id, second.id}
        await client.delete_session(made.id, "ann")
        with pytest.raises(SessionNotFound):
            await client.session(made.id, "ann")


async def test_models_and_tokens() -> None:
    async with stage() as here, AsyncClient(here.gateway.grpc) as client:
        (model,) = await client.models()
        assert model == await client.model("bytes")
        tokenized = await client.tokenize("Say it")
        assert tokenized.token_ids == tuple(b"Say it")
        assert tokenized.context_length == model.context_length
        assert (await client.tokenize((ChatMessage("user", "a"),))).token_ids == tuple(b"user: a\n")
        assert await client.detokenize(tokenized.token_ids) == "Say it"
        with pytest.raises(ModelNotFound):
            await client.model("other")


async def test_a_generation_is_cancelled_from_elsewhere() -> None:
    async with stage(ScriptedVerifier(script=LONG)) as here, AsyncClient(here.gateway.grpc) as client:
        texts = []
        async for event in client.stream(REQUEST):
            if isinstance(event, StartedEvent):
                assert await client.cancel(event.id)
            elif isinstance(event, RoundEvent):
                texts += [token.text for token in event.tokens]
    assert len("".join(texts)) < len(LONG.text)


async def test_an_asyncio_stream_goes_on_at_the_next_gateway(server: Server) -> None:
    verifier, texts = ScriptedVerifier(script=replace(LONG, pause=0.1)), []
    async with replicas(server.url, verifier, drain=DrainSettings(limit=0.0), lease=3600.0) as pair:
        addresses = [each.gateway.grpc for each in pair]
        async with AsyncClient(*addresses, retries=Retries(first=0.01)) as client:
            async for event in client.stream(REQUEST):
                if isinstance(event, RoundEvent):
                    texts += [token.text for token in event.tokens]
                    if len(texts) == 4:
                        await pair[0].gateway.drain()
    assert "".join(texts) == LONG.text
    assert len(verifier.calls) == 2


async def test_a_stream_goes_on_at_the_next_gateway(server: Server) -> None:
    verifier = ScriptedVerifier(script=replace(LONG, pause=0.1))
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

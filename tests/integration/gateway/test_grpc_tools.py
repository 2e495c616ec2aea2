"""Tools over gRPC: offers and calls are the same as over HTTP."""

import json
from typing import Any

import grpc
import pytest

from specdec.errors import FieldInvalid, FieldRequired, UnsupportedParameter
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.serving.rpc.status import from_rpc_error
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script, ScriptedVerifier, facts

WEATHER = pb.Tool(name="weather", parameters='{"type": "object", "properties": {"city": {"type": "string"}}}')
TIME = pb.Tool(name="time")
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
CALLED = [("weather", {"city": "Ulm"}), ("time", {})]
PATCH = '*** Begin Patch\n*** Delete File: "é".py\n*** End Patch\n'
PATCH_CALL = f'<tool_call>\n{{"name": "apply_patch", "arguments": {json.dumps({"input": PATCH})}}}\n</tool_call>'
LARK = 'start: "*** Begin Patch" LF /(.*)/ LF "*** End Patch" LF?\n%import common.LF'
CUSTOM = pb.Tool(name="apply_patch", description="Edit files.", custom=pb.CustomInput(lark=LARK))
USER = pb.ChatMessage(role="user", content="?")


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return pb_grpc.GenerationServiceStub(channel)


def asked(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"chat": pb.ChatPrompt(messages=[USER]), "tools": [WEATHER, TIME]} | fields))


def chat(**message: Any) -> dict[str, pb.ChatPrompt]:
    return {"chat": pb.ChatPrompt(messages=[pb.ChatMessage(**message)])}


class Heard:
    """Calls and text that a client assembles from the events of a stream."""

    def __init__(self) -> None:
        self.text, self.received, self.pieces = "", 0, 0
        self.calls: dict[int, pb.ToolCall] = {}

    def take(self, event: Any) -> None:
        which = event.WhichOneof("event")
        self.received += len(event.round.tokens)
        message = getattr(event, which).message if which != "started" else pb.MessageDelta()
        self.text += message.content
        for part in message.tool_calls:
            call = self.calls.setdefault(part.index, pb.ToolCall(id=part.id, name=part.name, custom=part.custom))
            call.arguments += part.arguments
            self.pieces += 1

    @property
    def called(self) -> list[tuple[str, Any]]:
        return [(call.name, json.loads(call.arguments)) for call in self.calls.values()]


async def test_a_whole_answer_has_the_text_and_the_calls(here: Stage, stub: Any) -> None:
    here.verifier.script = Script(text=f"Well. {CALLS}")
    answer = await stub.Generate(asked())
    calls = answer.message.tool_calls
    assert (answer.message.content, [(each.name, json.loads(each.arguments)) for each in calls]) == ("Well.", CALLED)
    assert len({each.id for each in calls}) == 2
    assert answer.text == f"Well. {CALLS}"
    assert answer.finish_reason == common_pb2.FINISH_REASON_STOP


async def test_every_choice_has_its_own(here: Stage, stub: Any) -> None:
    here.verifier.script = Script(text=CALLS)
    choices = (await stub.Generate(asked(n=2))).choices
    assert [[call.name for call in each.message.tool_calls] for each in choices] == [["weather", "time"]] * 2


async def test_without_tools_nothing_is_read(here: Stage, stub: Any) -> None:
    here.verifier.script = Script(text=CALLS)
    none = pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_NONE)
    for request in (asked(tools=()), asked(tool_choice=none)):
        answer = await stub.Generate(request)
        assert not answer.HasField("message")
        assert answer.text == CALLS


@pytest.mark.parametrize("custom", [pb.CustomInput(), pb.CustomInput(lark=LARK), pb.CustomInput(regex=r"[\s\S]*")])
async def test_a_custom_tool_is_called_with_its_input(custom: pb.CustomInput) -> None:
    verifier = ScriptedVerifier(info=facts(context_length=4096), script=Script(text=PATCH_CALL, gamma=1))
    request = asked(tools=[pb.Tool(name="apply_patch", custom=custom), TIME])
    async with stage(verifier) as here, grpc.aio.insecure_channel(here.gateway.grpc) as channel:
        stub: Any = pb_grpc.GenerationServiceStub(channel)
        (call,) = (await stub.Generate(request)).message.tool_calls
        assert (call.name, call.arguments, call.custom) == ("apply_patch", PATCH, True)
        heard, name = Heard(), ""
        begun = stub.StreamGenerate(pb.StreamGenerateRequest(request=request, resumable=True))
        for event in [event async for event in begun][:20]:
            name = name or event.started.id
            heard.take(event)
        async for event in stub.ResumeGeneration(pb.ResumeGenerationRequest(id=name, received=heard.received)):
            heard.take(event)
        (joined,) = heard.calls.values()
        assert (joined.name, joined.arguments, joined.custom) == ("apply_patch", PATCH, True)
        answered = pb.ChatMessage(role="tool", content="done", tool_call_id=call.id)
        messages = [USER, pb.ChatMessage(role="assistant", tool_calls=[call]), answered]
        await stub.Generate(asked(chat=pb.ChatPrompt(messages=messages), tools=[CUSTOM]))
        assert b"tool: done" in bytes(verifier.calls[-1].tokens)


async def test_a_custom_tool_is_bound_to_its_grammar(here: Stage, stub: Any) -> None:
    here.verifier.script = Script(text=PATCH_CALL)
    for choice in (pb.ToolChoice(name="apply_patch"), pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED)):
        await stub.Generate(asked(tools=[CUSTOM], tool_choice=choice))
        grammar = here.verifier.calls[-1].sampling.grammar
        assert grammar is not None
        assert '\\"apply_patch\\"' in grammar.text
        assert "SPECDEC_CHARACTER" in grammar.text  # letters of the tool's own grammar, inside a JSON string


@pytest.mark.parametrize("at", [0, 6, 20])
async def test_a_stream_has_calls_in_parts_and_is_resumed_within_one(here: Stage, stub: Any, at: int) -> None:
    here.verifier.script = Script(text=f"Well. {CALLS}", gamma=1)
    heard, name = Heard(), ""
    begun = stub.StreamGenerate(pb.StreamGenerateRequest(request=asked(), resumable=True))
    for event in [event async for event in begun][: at + 1]:
        name = name or event.started.id
        heard.take(event)
    async for event in stub.ResumeGeneration(pb.ResumeGenerationRequest(id=name, received=heard.received)):
        heard.take(event)
    assert (heard.text, heard.called) == ("Well.", CALLED)
    assert heard.pieces > 6, "arguments come as they are written"


@pytest.mark.parametrize(
    ("choice", "parts"),
    [
        (pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED), ["weather", "time"]),
        (pb.ToolChoice(name="time"), ["time"]),
        (pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_AUTO), []),
    ],
)
async def test_a_call_that_must_be_is_a_grammar(
    here: Stage, stub: Any, choice: pb.ToolChoice, parts: list[str]
) -> None:
    here.verifier.script = Script(text=CALLS)
    await stub.Generate(asked(tool_choice=choice, parallel_tool_calls=False))
    grammar = here.verifier.calls[-1].sampling.grammar
    assert [name for name in ("weather", "time") if grammar and f'\\"{name}\\"' in grammar.text] == parts


async def test_what_a_tool_answered_goes_back_to_the_model(here: Stage, stub: Any) -> None:
    call = pb.ToolCall(id="c1", name="time", arguments="{}")
    answered = pb.ChatMessage(role="tool", content="noon", tool_call_id="c1")
    messages = [USER, pb.ChatMessage(role="assistant", tool_calls=[call]), answered]
    await stub.Generate(asked(chat=pb.ChatPrompt(messages=messages)))
    assert b"tool: noon" in bytes(here.verifier.calls[-1].tokens)


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"tools": [TIME, TIME]}, FieldInvalid, "tools"),
        ({"tools": [TIME] * 129}, FieldInvalid, "tools"),
        ({"tools": [pb.Tool(name="a b")]}, FieldInvalid, "tools[0].name"),
        ({"tools": [pb.Tool(name="a", parameters="[1]")]}, FieldInvalid, "tools[0].parameters"),
        ({"tools": [pb.Tool(name="a", parameters="{")]}, FieldInvalid, "tools[0].parameters"),
        ({"tool_choice": pb.ToolChoice(name="none")}, FieldInvalid, "tool_choice"),
        (
            {"tools": [pb.Tool(name="p", parameters="{}", custom=pb.CustomInput())]},
            FieldInvalid,
            "tools[0].parameters",
        ),
        ({"tools": [pb.Tool(name="p", strict=True, custom=pb.CustomInput())]}, FieldInvalid, "tools[0].strict"),
        ({"tools": [pb.Tool(name="p", custom=pb.CustomInput(lark=""))]}, FieldRequired, "tools[0].custom.lark"),
        ({"tools": [pb.Tool(name="p", custom=pb.CustomInput(lark="start: /(/"))]}, FieldInvalid, "tools"),
        ({"tool_choice": pb.ToolChoice(name="")}, FieldRequired, "tool_choice"),
        ({"tools": (), "tool_choice": pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED)}, FieldRequired, "tools"),
        ({"text": "x"}, UnsupportedParameter, "tools"),
        (
            {"chat": pb.ChatPrompt(messages=[pb.ChatMessage(role="tool", content="x")])},
            FieldRequired,
            "messages[0].tool_call_id",
        ),
        (
            {"chat": pb.ChatPrompt(messages=[pb.ChatMessage(role="user", tool_calls=[pb.ToolCall(name="a")])])},
            FieldInvalid,
            "messages[0].tool_calls",
        ),
    ],
)
async def test_what_cannot_be_is_refused_by_name(stub: Any, fields: Any, kind: type[Exception], param: str) -> None:
    if "text" in fields:
        fields = fields | {"chat": None}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(asked(**fields))
    error = from_rpc_error(refused.value)
    assert isinstance(error, kind)
    assert error.param == param

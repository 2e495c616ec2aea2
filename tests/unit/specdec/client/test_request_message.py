"""A request of the client can set every field of the gRPC API, and names the field that it cannot send."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from specdec.beams.options import BeamOptions, EarlyStopping
from specdec.client.events import PromptRequest
from specdec.client.request_message import request_to_pb
from specdec.client.requests import (
    ChatMessage,
    ChatOptions,
    CustomTool,
    FunctionTool,
    OutputForm,
    ToolInvocation,
)
from specdec.errors import FieldInvalid
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.rules.speculation import Mode, TreeOptions

CALL = ToolInvocation("look", "{}", "c1", custom=True)
MESSAGES = (ChatMessage("assistant", "Hi", (CALL,), "c0", "ann", "Hm."), ChatMessage("user", "Look."))
EVERYTHING = PromptRequest(
    MESSAGES,
    max_tokens=5,
    temperature=0.5,
    top_p=0.9,
    seed=7,
    gamma=GammaPolicy(PolicyKind.EGAG, 2, 6, 0.25, 0.125),
    mode=Mode.REJECTION,
    lenience=0.5,
    drafter="ngram",
    tree=TreeOptions(8, 2, 4, True, ("ngram", "suffix")),
    stop=(".",),
    user="ann",
    cache_salt="salt",
    session="s1",
    detail=True,
    model="demo",
    top_k=3,
    min_p=0.1,
    presence_penalty=0.5,
    frequency_penalty=0.25,
    repetition_penalty=1.5,
    logit_bias={4: 2.0},
    allowed_token_ids=(1, 2),
    banned_token_ids=(3,),
    bad_words=("no",),
    min_tokens=1,
    stop_token_ids=(9,),
    ignore_eos=True,
    include_stop_str_in_output=True,
    n=2,
    logprobs=3,
    prompt_logprobs=1,
    prediction="Look",
    structured_output=OutputForm(
        json_schema={"type": "object"},
        disable_any_whitespace=True,
        whitespace_pattern=" ?",
        disable_additional_properties=True,
    ),
    tools=(
        FunctionTool("look", "Looks.", {"type": "object"}, strict=True),
        CustomTool("edit", "Edits.", lark="start: /a/"),
        CustomTool("see", regex="a+"),
    ),
    tool_choice="required",
    parallel_tool_calls=False,
    chat_options=ChatOptions(False, True, {"a": 1}, "low", True, 50, ({"title": "a"},), include_reasoning=False),
    skip_special_tokens=False,
    add_special_tokens=False,
    truncate_prompt_tokens=-1,
    expect_turn=2,
    priority="flex",
    beam_search=BeamOptions(4, 0.5, EarlyStopping.NEVER),
    request_id="r1",
)
OTHERS = (
    PromptRequest("Say it", gamma=4, forced_tool="look", structured_output=OutputForm(regex="a+")),
    PromptRequest((1, 2), structured_output=OutputForm(json_object=True)),
    PromptRequest("", structured_output=OutputForm(choice=("a", "b"))),
    PromptRequest("", structured_output=OutputForm(grammar="start: /a/")),
)


def fields(kind: Descriptor) -> Iterator[str]:
    """Yield the full names of a message's fields and of those of the messages in it."""
    for field in kind.fields:
        yield field.full_name
        if field.message_type and not field.message_type.GetOptions().map_entry:
            yield from fields(field.message_type)


def set_fields(message: Message) -> Iterator[str]:
    """Yield the full names of the fields that are set in a message."""
    for field, value in message.ListFields():
        yield field.full_name
        if field.message_type and not field.message_type.GetOptions().map_entry:
            for each in [value] if isinstance(value, Message) else value:
                yield from set_fields(each)


def test_every_field_of_the_api_can_be_set() -> None:
    found = {name for request in (EVERYTHING, *OTHERS) for name in set_fields(request_to_pb(request))}
    assert set(fields(pb.GenerateRequest.DESCRIPTOR)) == found


def test_every_value_arrives_under_its_name() -> None:
    made = request_to_pb(EVERYTHING)
    assert (made.sampling.top_k, made.sampling.logit_bias[4], list(made.sampling.bad_words)) == (3, 2.0, ["no"])
    assert (made.stop.max_tokens, list(made.stop.stop), made.n, made.logprobs) == (5, ["."], 2, 3)
    assert made.structured_output.json_schema == made.tools[0].parameters == '{"type": "object"}'
    assert (made.tool_choice.mode, made.priority) == (pb.TOOL_CHOICE_MODE_REQUIRED, common_pb2.PRIORITY_CLASS_FLEX)
    assert [(each.role, each.content) for each in made.chat.messages] == [("assistant", "Hi"), ("user", "Look.")]
    assert (made.chat.chat_template_kwargs, made.chat.thinking_token_budget) == ('{"a": 1}', 50)
    assert [dict(each.texts) for each in made.chat.documents] == [{"title": "a"}]
    assert [each.custom.WhichOneof("grammar") for each in made.tools] == [None, "lark", "regex"]
    assert [each.HasField("custom") for each in made.tools] == [False, True, True]


def test_a_field_that_is_not_given_is_not_set() -> None:
    made = request_to_pb(PromptRequest("Say it"))
    assert set(set_fields(made)) == {
        f"specdec.gateway.v1.GenerateRequest.{name}" for name in ("text", "sampling", "stop", "speculation")
    }


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"n": -1}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"top_k": "many"}, "top_k"),
        ({"prompt": (1, "two")}, "token_ids"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": "auto", "forced_tool": "look"}, "forced_tool"),
        ({"priority": "first"}, "priority"),
        ({"structured_output": OutputForm()}, "structured_output"),
        ({"structured_output": OutputForm(regex="a", choice=("b",))}, "structured_output"),
    ],
)
def test_a_value_that_no_message_holds_is_refused_by_name(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldInvalid, match=param) as refused:
        request_to_pb(PromptRequest(**{"prompt": "Say it"} | wrong))
    assert refused.value.param == param

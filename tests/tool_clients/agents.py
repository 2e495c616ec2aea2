"""Sessions of ten turns with tools and cut calls through LiteLLM and pydantic-ai; run by an environment that has these.

    python agents.py BASE_URL FILE

It writes to the file, as JSON, the number of turns and of calls by session, and the objects that pydantic-ai was given.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import litellm
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

TURNS = 10
LIMITS = (9, 40, 20, 30)
"""Most tokens of the turns in order; some cut calls. Ten turns fit the demo's context."""
LOOK_UP: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up a page.",
        "parameters": {
            "type": "object",
            "properties": {"page": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["page"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def chatted(url: str, model: str, streamed: bool) -> Mapping[str, int]:
    """Return the counts of a session of chats with LiteLLM, which keeps each answer as it came."""
    history: list[Any] = [{"role": "user", "content": "Look up a page."}]
    calls = 0
    for turn in range(TURNS):
        choice = "required" if turn % 2 else "auto"
        limit = LIMITS[turn % len(LIMITS)]
        asked: dict[str, Any] = {"model": model, "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}
        answer: Any = litellm.completion(
            **asked, messages=history, tools=[LOOK_UP], tool_choice=choice, max_tokens=limit, stream=streamed
        )
        if streamed:
            answer = litellm.stream_chunk_builder(list(answer), messages=history)
        message = answer.choices[0].message
        history.append(message)
        for call in message.tool_calls or ():
            calls += 1
            history.append({"role": "tool", "tool_call_id": call.id, "content": "an empty page"})
        history.append({"role": "user", "content": "And the next one?"})
    return {"turns": TURNS, "calls": calls}


def responded(url: str) -> Mapping[str, int]:
    """Return the counts of a session of responses with LiteLLM, with items sent back and with earlier responses."""
    tool = {"type": "function", **LOOK_UP["function"]}
    history: list[Any] = [{"role": "user", "content": "Look up a page."}]
    calls = 0
    for turn in range(TURNS):
        answer: Any = litellm.responses(
            model="openai/demo",
            api_base=f"{url}/v1",
            api_key="none",
            input=history,
            tools=[tool],
            tool_choice="required" if turn % 2 else "auto",
            max_output_tokens=LIMITS[turn % len(LIMITS)],
        )
        for item in answer.output:
            history.append(item.model_dump())
            if item.type == "function_call":
                calls += 1
                history.append({"type": "function_call_output", "call_id": item.call_id, "output": "an empty page"})
        history.append({"role": "user", "content": "And the next one?"})
    return {"turns": TURNS, "calls": calls}


def messaged(url: str) -> Mapping[str, int]:
    """Return the counts of a session of Anthropic's messages with LiteLLM."""
    function = LOOK_UP["function"]
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    history: list[Any] = [{"role": "user", "content": "Look up a page."}]
    calls = 0
    for turn in range(TURNS):
        answer: Any = asyncio.run(
            litellm.anthropic.messages.acreate(
                model="anthropic/demo",
                api_base=url,
                api_key="none",
                messages=history,
                tools=[tool],
                tool_choice={"type": "any" if turn % 2 else "auto"},
                max_tokens=LIMITS[turn % len(LIMITS)],
            )
        )
        content = answer["content"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "an empty page"}
            for block in content
            if block["type"] == "tool_use"
        ]
        calls += len(results)
        history += [{"role": "assistant", "content": content}] if content else []
        history.append({"role": "user", "content": [*results, {"type": "text", "text": "And the next one?"}]})
    return {"turns": TURNS, "calls": calls}


def models_of(url: str) -> Mapping[str, Model]:
    """Return pydantic-ai's models for each API of the gateway."""
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return {
        "chat": OpenAIChatModel("demo", provider=provider),
        "responses": OpenAIResponsesModel("demo", provider=provider),
        "messages": AnthropicModel("demo", provider=AnthropicProvider(base_url=url, api_key="none")),
    }


def typed(model: Model) -> Mapping[str, Any]:
    """Return what pydantic-ai gives in ten turns, each a call of an output tool or a form after the turn before."""
    settings = ModelSettings(max_tokens=120, temperature=1.0)
    history: list[Any] = []
    people: list[Any] = []
    for turn in range(TURNS):
        output: Any = NativeOutput(Person) if turn % 2 and not isinstance(model, AnthropicModel) else ToolOutput(Person)
        agent = Agent(model, output_type=output, model_settings=settings, retries=3)
        result = agent.run_sync("Describe a person.", message_history=history)
        history = result.new_messages()  # all of them would not fit the demo's context
        people.append(result.output.model_dump())
    return {"turns": TURNS, "people": people}


async def streamed(model: Model) -> Mapping[str, Any]:
    """Return what pydantic-ai makes of the stream of a text."""
    agent = Agent(model, model_settings=ModelSettings(max_tokens=20, temperature=0.0))
    async with agent.run_stream("Say something.") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return {"text": "".join(pieces), "whole": await result.get_output()}


def main() -> int:
    url = sys.argv[1]
    found: dict[str, Any] = {
        "litellm chat": chatted(url, "openai/demo", streamed=False),
        "litellm chat stream": chatted(url, "openai/demo", streamed=True),
        "litellm hosted_vllm": chatted(url, "hosted_vllm/demo", streamed=False),
        "litellm responses": responded(url),
        "litellm messages": messaged(url),
    }
    for name, model in models_of(url).items():
        found[f"pydantic-ai {name}"] = typed(model)
        found[f"pydantic-ai {name} stream"] = asyncio.run(streamed(model))
    Path(sys.argv[2]).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

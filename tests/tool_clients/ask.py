"""Asks a system for objects and calls through other people's clients; run by an environment that has these.

    python ask.py BASE_URL

It prints, as JSON, what each way of asking gave.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import instructor
import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

ASKED = "Describe the person Ann, who is 7."


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


Digit = Annotated[int, Field(ge=0, le=9)]


@tool
def add_numbers(a: Digit, b: Digit) -> int:
    """Add two numbers."""
    return a + b


def instructed(url: str) -> Mapping[str, Any]:
    """instructor in each of its ways that bind the model to the schema; in the others a prompt has to."""
    given = openai.OpenAI(base_url=url, api_key="none")
    modes = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT)
    return {f"instructor {mode.value}": _instructed(given, mode) for mode in modes}


def _instructed(given: openai.OpenAI, mode: instructor.Mode) -> Any:
    client = instructor.from_openai(given, mode=mode)
    messages: Any = [{"role": "user", "content": ASKED}]
    options: dict[str, Any] = {"model": "demo", "max_tokens": 80, "temperature": 1.0, "max_retries": 0}
    try:
        return client.chat.completions.create(response_model=Person, messages=messages, seed=1, **options).model_dump()
    except Exception as error:  # noqa: BLE001 - the test says which way failed, and how
        return f"{type(error).__name__}: {error}"


def structured(chat: ChatOpenAI) -> Mapping[str, Any]:
    """LangChain's with_structured_output."""
    ways = ("json_schema", "function_calling")
    return {
        f"with_structured_output {way}": chat.with_structured_output(Person, method=way).invoke(ASKED).model_dump()
        for way in ways
    }


def bound(chat: ChatOpenAI) -> Mapping[str, Any]:
    """LangChain's bind_tools: one call, its stream, and what comes after the tool has answered."""
    must = chat.bind_tools([add_numbers], tool_choice="any", strict=True, parallel_tool_calls=False)
    called = must.invoke([HumanMessage("2 + 3?")])
    whole = None
    pieces = 0
    for chunk in must.stream([HumanMessage("2 + 3?")]):
        pieces += len(chunk.tool_call_chunks)
        whole = chunk if whole is None else whole + chunk
    assert isinstance(called, AIMessage)
    answered = ToolMessage("5", tool_call_id=called.tool_calls[0]["id"])
    after = chat.bind_tools([add_numbers]).invoke([HumanMessage("2 + 3?"), called, answered])
    return {
        "bind_tools": [(each["name"], each["args"]) for each in called.tool_calls],
        "bind_tools stream": [(each["name"], each["args"]) for each in whole.tool_calls] if whole else [],
        "bind_tools pieces": pieces,
        "bind_tools after": type(after).__name__,
    }


async def streamed(chat: ChatOpenAI) -> Mapping[str, Any]:
    """LangChain's stream of a structured output, without blocking."""
    last: Any = None
    async for part in chat.with_structured_output(Person, method="function_calling").astream(ASKED):
        last = part
    return {"with_structured_output stream": last.model_dump()}


def main() -> int:
    url = sys.argv[1]
    chat = ChatOpenAI(model="demo", base_url=url, api_key="none", max_tokens=80, temperature=1.0, seed=1, max_retries=0)
    asks: tuple[Callable[[], Mapping[str, Any]], ...] = (
        lambda: instructed(url),
        lambda: structured(chat),
        lambda: bound(chat),
        lambda: asyncio.run(streamed(chat)),
    )
    sys.stdout.write(json.dumps({name: value for ask in asks for name, value in ask().items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

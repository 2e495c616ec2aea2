"""Sessions of ten turns with tools and cut calls, in LangChain and instructor; run by an environment that has these.

    python sessions.py BASE_URL

It prints, as JSON, the number of turns and of calls by session.
"""

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import instructor
import openai
from instructor.core.exceptions import IncompleteOutputException
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

TURNS = 10
LIMITS = (16, 40, 20, 30)
"""Most tokens of the turns in order; some cut calls. Ten turns fit the demo's context."""


@tool
def look_up(page: Annotated[int, Field(ge=0, le=99)]) -> str:
    """Look up a page."""
    return f"page {page}"


class Page(BaseModel):
    """A page to look up."""

    model_config = ConfigDict(extra="forbid")

    page: int = Field(ge=0, le=99)


def chained(url: str, *, responses: bool, streamed: bool) -> Mapping[str, int]:
    """Return the counts of a session with LangChain, which sends its messages back, with calls it could not parse."""
    history: list[Any] = [HumanMessage("Look up a page.")]
    calls = 0
    for turn in range(TURNS):
        chat = ChatOpenAI(
            model="demo",
            base_url=url,
            api_key="none",
            max_tokens=LIMITS[turn % len(LIMITS)],
            max_retries=0,
            use_responses_api=responses,
            store=False if responses else None,
        )
        asked = chat.bind_tools([look_up], tool_choice="any" if turn % 2 else "auto", strict=True)
        answer = asked.invoke(history)
        if streamed:
            whole: Any = None
            for chunk in asked.stream(history):
                whole = chunk if whole is None else whole + chunk
            answer = AIMessage(**whole.model_dump(exclude={"type", "tool_call_chunks", "chunk_position"}))
        history.append(answer)
        for call in [*answer.tool_calls, *answer.invalid_tool_calls]:
            calls += 1
            history.append(ToolMessage("an empty page", tool_call_id=call["id"]))
        history.append(HumanMessage("And the next one?"))
    return {"turns": TURNS, "calls": calls}


def instructed(url: str) -> Mapping[str, int]:
    """Return the counts of a session with instructor, whose error for a cut call has the answer."""
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=instructor.Mode.TOOLS)
    history: list[Any] = [{"role": "user", "content": "Look up a page."}]
    calls = 0
    for turn in range(TURNS):
        try:
            _, answer = client.chat.completions.create_with_completion(
                model="demo",
                messages=history,
                response_model=Page,
                max_tokens=8 if turn % 4 == 0 else 40,
                max_retries=0,
            )
        except IncompleteOutputException as cut:
            answer = cut.last_completion
        message = answer.choices[0].message
        history.append(message.model_dump())
        for call in message.tool_calls or ():
            calls += 1
            history.append({"role": "tool", "tool_call_id": call.id, "content": "an empty page"})
        history.append({"role": "user", "content": "And the next one?"})
    return {"turns": TURNS, "calls": calls}


def main() -> int:
    url = sys.argv[1]
    found = {
        "langchain chat": chained(url, responses=False, streamed=False),
        "langchain chat stream": chained(url, responses=False, streamed=True),
        "langchain responses": chained(url, responses=True, streamed=False),
        "langchain responses stream": chained(url, responses=True, streamed=True),
        "instructor": instructed(url),
    }
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Minimal request bodies, and the requests parsed from them."""

from typing import Any

from gateway.http.requests.completions import ChatBody, CompletionBody
from gateway.request import GenerationRequest

COMPLETION: dict[str, Any] = {"model": "m", "prompt": "Say it"}
TREE = {"nodes": 8, "width": 3, "depth": 4}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def completion(**fields: Any) -> GenerationRequest:
    return CompletionBody.parse(COMPLETION | fields).request("r-1")


def chat(**fields: Any) -> GenerationRequest:
    return ChatBody.parse(CHAT | fields).request("r-1")

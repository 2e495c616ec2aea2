"""Requests whose answer is a function of the request and the target alone, with and without a stop string."""

import random
from dataclasses import replace
from typing import Any

from tests.chaos.stream import Answer, Scenario

PROMPT = 12
"""Number of tokens in every prompt, unless a load says another."""
_STOP_CHARS = 6


def scenario(rng: random.Random, number: int, tokens: int, vocabulary: int, length: int = PROMPT) -> Scenario:
    """Return a request for `tokens` tokens with a random prompt: greedy for even numbers, coupled mode for odd ones."""
    prompt = [rng.randrange(1, vocabulary) for _ in range(length)]
    sampling: dict[str, Any] = {"temperature": 1, "seed": number} if number % 2 else {"temperature": 0}
    mode = "coupled" if number % 2 else "rejection"
    speculation = {"mode": mode} | ({"gamma": 3} if number % 4 > 1 else {})
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"resumable": True},
        "ignore_eos": True,
        "return_token_ids": True,
        "speculation": speculation,
    }
    return Scenario(f"{mode}-{number}", body | sampling)


def with_stop(scenario: Scenario, answer: Answer) -> Scenario:
    """Return a copy of the request with a stop string from the last third of its answer."""
    start = 2 * len(answer.text) // 3
    stop = answer.text[start : start + _STOP_CHARS]
    return replace(scenario, name=f"{scenario.name}-stop", body=scenario.body | {"stop": [stop]})

"""Generates through the gateway with speculation and without: at temperature 0, the tokens must be the same."""

import json
import os
import sys
import urllib.request

GATEWAY, PROMPT, MAX_TOKENS = os.environ["GATEWAY"], os.environ["PROMPT"], int(os.environ["MAX_TOKENS"])


def get(path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(GATEWAY + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer: dict[str, object] = json.load(reply)
    return answer


def tokens(model: str, gamma: int) -> list[int]:
    mode = "rejection" if gamma else "off"
    speculation = {"mode": mode, "gamma": gamma} if gamma else {"mode": mode}
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "return_token_ids": True,
        "speculation": speculation,
    }
    answer = get("/v1/completions", body)
    sys.stdout.write(f"gamma {gamma}: {answer['speculation']}\n")
    return list(answer["choices"][0]["token_ids"])


model = get("/v1/models")["data"][0]["id"]
plain, speculative = tokens(model, 0), tokens(model, 4)
if not plain or plain != speculative:
    sys.exit(f"tokens differ: {plain} without drafts, {speculative} with them")
sys.stdout.write(f"{len(plain)} tokens, the same with drafts and without\n")

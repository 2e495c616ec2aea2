"""Generate with every model, with drafts and without. The tokens must be equal, and drafts must be used."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

GATEWAY, PROMPT, MAX_TOKENS = os.environ["GATEWAY"], os.environ["PROMPT"], int(os.environ["MAX_TOKENS"])
MODELS: list[str] = json.loads(os.environ["MODELS"])
"""Names of the models. The first model's drafters belong to this release. Those of other models need not exist."""
DRAFTS_REQUIRED = os.environ["DRAFTS"] == "required"
KEY = {"Authorization": f"Bearer {os.environ['API_KEY']}"} if os.environ.get("API_KEY") else {}
TLS = ssl.create_default_context()
TLS.check_hostname, TLS.verify_mode = False, ssl.CERT_NONE
"""The certificate has the name for outside callers and not that of the Service."""
WAIT_SECONDS = float(os.environ.get("WAIT_SECONDS", "60"))
"""Seconds for verifiers to find drafters that have just become ready."""
REASONS = {
    "tokenizer_mismatch": "verifiers refuse drafters, whose tokenizer is another: give both tiers models of one",
    "drafter_unavailable": "verifiers reach no drafter: look at the drafters' pods and at specdec_drafter_up",
    "late": "drafters are connected and answer nothing in time: look at their logs and their load",
    "overloaded": "drafters have no room: give them more memory or more replicas",
    "no_match": "the source of drafts has no match for the prompt: choose a tests.prompt that repeats itself",
    "not_worth_it": "verifiers find that drafts cost more than they save: give the request a fixed gamma",
    "first_round": "answers end before drafters have read the prompt: choose a longer tests.maxTokens",
    "": "verifiers decode plainly and name no reason: look at speculation.gammaMax and at the verifiers' settings",
}


def ask(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(GATEWAY + path, data, {"Content-Type": "application/json", **KEY})
    try:
        with urllib.request.urlopen(request, timeout=120, context=TLS) as reply:
            answer: dict[str, Any] = json.load(reply)
    except urllib.error.HTTPError as error:
        sys.exit(f"{path} is refused with status {error.code}: {error.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"the gateway {GATEWAY} does not answer: {error}")
    return answer


def complete(model: str, speculation: dict[str, Any]) -> dict[str, Any]:
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "return_token_ids": True,
        "speculation": speculation,
    }
    answer = ask("/v1/completions", body)
    sys.stdout.write(f"{speculation}: {answer.get('metrics')}, {answer['speculation']}\n")
    return answer


def drafted(answer: dict[str, Any]) -> int:
    metrics = answer.get("metrics")
    return int(metrics["speculative_decoding"]["num_draft_tokens"]) if metrics else 0


def with_drafts(model: str, required: bool) -> dict[str, Any]:
    ends = time.monotonic() + WAIT_SECONDS
    while True:
        answer = complete(model, {"mode": "rejection", "gamma": 4})
        if drafted(answer) or not required:
            return answer
        if time.monotonic() >= ends:
            reasons = answer["speculation"]["fallbacks"]
            likeliest = max(reasons, key=lambda reason: int(reasons[reason])) if reasons else ""
            sys.exit(f"no draft token came: {REASONS.get(likeliest, likeliest)}")
        time.sleep(2)


def check(model: str, drafts_required: bool) -> None:
    plain, speculative = complete(model, {"mode": "off"}), with_drafts(model, drafts_required)
    expected, found = (list(answer["choices"][0]["token_ids"]) for answer in (plain, speculative))
    if drafted(plain):
        sys.exit(f"{model}: drafts were used where the request turned them off")
    if not expected or expected != found:
        sys.exit(f"{model}: tokens differ: {expected} without drafts, {found} with them")
    drafts = drafted(speculative)
    sys.stdout.write(f"{model}: {len(expected)} tokens, the same with {drafts} drafted tokens and without\n")


served = [each["id"] for each in ask("/v1/models")["data"]]
for name in MODELS:
    if name not in served:
        sys.exit(f"{name}: no verifier of it is ready, so it is not listed among {served}")
    check(name, DRAFTS_REQUIRED and name == MODELS[0])

"""A check for schemathesis, which loads this file: a request that the schema allows is not refused.

Of rules between fields, of sums of tokens and of names that no list has, a schema says nothing.
"""

import schemathesis
from schemathesis import Case, CheckContext, GenerationMode, Response

BETWEEN_FIELDS = (
    "stream_options",
    "min_tokens",
    "max_tokens",
    "max_completion_tokens",
    "top_logprobs",
    "echo",
    "n",
    "lenience",
    "speculation.lenience",
    "allowed_token_ids",
    "bad_words",
    "banned_token_ids",
    "logit_bias",
    "chat_template_kwargs",
    "prompt_logprobs",
    "received",
    "Last-Event-ID",
    "messages",
    "system",
)

INSIDE = ("messages[", "input[", "tools", "tool_choice", "response_format", "structured_outputs", "guided_")
"""Beginnings of the fields whose content follows rules of its own: roles, tools and grammars."""


@schemathesis.check
def allowed_requests_are_taken(context: CheckContext, response: Response, case: Case) -> None:
    """A refusal of an allowed request has its reason between fields."""
    meta = case.meta
    if meta is None or meta.generation.mode is not GenerationMode.POSITIVE or response.status_code != 400:
        return
    error = response.json()["error"]
    named = error["param"] in BETWEEN_FIELDS or str(error["param"]).startswith(INSIDE)
    assert named or error["code"] == "context_length_exceeded", error

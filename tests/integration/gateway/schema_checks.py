"""A check for schemathesis, which loads this file: the gateway does not refuse a request that the schema allows.

A schema cannot express rules between fields, limits on sums of tokens, or names that are not in a fixed list.
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
"""Prefixes of fields whose contents follow rules outside the schema: roles, tools and grammars."""


@schemathesis.check
def allowed_requests_are_taken(context: CheckContext, response: Response, case: Case) -> None:
    """Fail if an allowed request is refused, except for rules that a schema cannot express."""
    meta = case.meta
    if meta is None or meta.generation.mode is not GenerationMode.POSITIVE or response.status_code != 400:
        return
    error = response.json()["error"]
    named = error["param"] in BETWEEN_FIELDS or str(error["param"]).startswith(INSIDE)
    assert named or error["code"] == "context_length_exceeded", error

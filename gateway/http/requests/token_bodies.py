"""The bodies of the endpoints that show tokens, in vLLM's shape."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from gateway.http.requests.body import Body
from gateway.http.requests.fields import ModelName, TemplateArguments, TokenIds
from gateway.http.requests.messages import Messages, TemplateBody
from gateway.http.requests.tools import Tools, ToolsBody
from gateway.request import ChatPrompt, Prompt, TextPrompt, check_prompt
from specdec.errors import FieldRequired


def _only(given: str, other: str) -> dict[str, Any]:
    """The schema of an object that has one field and not the other."""
    return {"required": [given], "properties": {given: {"not": {"type": "null"}}, other: {"type": "null"}}}


class TokenizeBody(TemplateBody):
    """POST /tokenize: a text, or a conversation."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_only("prompt", "messages"), _only("messages", "prompt")]})

    model: ModelName | None = None
    prompt: Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})] | None = None
    messages: Messages | None = Field(default=None, json_schema_extra={"minItems": 1})
    chat_template_kwargs: TemplateArguments | None = None
    return_token_strs: bool | None = None
    tools: Tools | None = None

    def input(self) -> Prompt:
        """Return the prompt to tokenize; raises RequestError."""
        if (self.prompt is None) == (self.messages is None):
            raise FieldRequired("exactly one of prompt and messages is required", "prompt")
        prompt: Prompt = TextPrompt(self.prompt or "", special=self.add_special_tokens is not False)
        if self.messages is not None:
            chat = self.opened(ChatPrompt(self.messages, template_arguments=self.chat_template_kwargs or {}))
            prompt = replace(chat, tools=ToolsBody(tools=self.tools).asked().offered())
        check_prompt(prompt)
        return prompt


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: ModelName | None = None
    tokens: TokenIds

"""Conversations as the OpenAI API writes them, and the bodies that only look at tokens."""

from gateway.http.body import Body
from gateway.http.fields import ContentField, Natural, Nothing, Role
from gateway.request import ChatPrompt, Message, Prompt, TextPrompt, check_prompt
from specdec.errors import FieldRequired


class MessageBody(Body):
    """One message; what an earlier answer carries beside its content is taken when empty."""

    role: Role
    content: ContentField
    name: None = None
    refusal: None = None
    tool_calls: Nothing | None = None
    function_call: None = None
    audio: None = None
    annotations: Nothing | None = None


class TokenizeBody(Body):
    """POST /v1/tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[MessageBody] | None = None

    def input(self) -> Prompt:
        """The one thing to tokenize; raises RequestError."""
        if (self.prompt is None) == (self.messages is None):
            raise FieldRequired("exactly one of prompt and messages is required", "prompt")
        prompt = TextPrompt(self.prompt or "") if self.messages is None else chat_prompt(self.messages)
        check_prompt(prompt)
        return prompt


class DetokenizeBody(Body):
    """POST /v1/detokenize."""

    model: str | None = None
    tokens: list[Natural]


def chat_prompt(messages: list[MessageBody]) -> ChatPrompt:
    """The conversation; what is wrong with it is told later."""
    return ChatPrompt(tuple(Message(_role(message.role), message.content) for message in messages))


def _role(role: str) -> str:
    """OpenAI's newer name for a system message is the same to a model."""
    return "system" if role == "developer" else role

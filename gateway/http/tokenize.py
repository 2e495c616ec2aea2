"""The bodies of the endpoints that turn text into tokens and back."""

from gateway.http.body import Body
from gateway.http.completions import Messages, chat_prompt
from gateway.http.fields import Naturals
from gateway.request import Prompt, TextPrompt, check_prompt
from specdec.errors import FieldRequired


class TokenizeBody(Body):
    """POST /v1/tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None

    def input(self) -> Prompt:
        """What is to be tokenized; raises RequestError."""
        if (self.prompt is None) == (self.messages is None):
            raise FieldRequired("exactly one of prompt and messages is required", "prompt")
        prompt = TextPrompt(self.prompt or "") if self.messages is None else chat_prompt(self.messages)
        check_prompt(prompt)
        return prompt


class DetokenizeBody(Body):
    """POST /v1/detokenize."""

    model: str | None = None
    tokens: Naturals

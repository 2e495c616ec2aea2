"""The model's tokenizer: prompts to token ids, token ids to text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.request import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt
from gateway.text.token_bytes import longest_token, token_bytes
from specdec.errors import ConfigError, FieldInvalid, UnsupportedParameter
from specdec.rules.vocabulary import fingerprint

_MARK = "\u241fanswer\u241f"
"""Marks the end of an assistant's message in the text that a chat template makes."""


class ModelTokenizer:
    """A Hugging Face tokenizer; a long prompt takes seconds, so that `PromptEncoder` calls it on threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.fingerprint = fingerprint(tokenizer.get_vocab())
        """Hash of the vocabulary; every verifier must have the same."""
        self.longest_token = longest_token(tokenizer)
        """Bytes of the longest token."""

    @classmethod
    def load(cls, path: Path) -> "ModelTokenizer":
        """Load from a local model folder.

        Raises:
            ConfigError: the folder has no tokenizer that can be loaded.
        """
        from transformers import AutoTokenizer

        if not path.is_dir():
            raise ConfigError(f"model.path {path}: no such folder")
        try:
            return cls(AutoTokenizer.from_pretrained(path, local_files_only=True))
        except Exception as error:  # a broken folder can fail in any way
            raise ConfigError(f"model.path {path}: no tokenizer that loads: {' '.join(str(error).split())}") from error

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The token ids of a prompt; those of a TokenPrompt are returned without change.

        Raises:
            UnsupportedParameter: the prompt is a chat, and the model has no chat template.
            FieldInvalid: the chat template refuses the messages.
        """
        match prompt:
            case TokenPrompt(tokens):
                return tokens
            case TextPrompt(text):
                return self._encode(text, True)
            case ChatPrompt(messages):
                return self._encode(self._render(messages), False)

    def encode_after(self, prompt: Prompt, history: Sequence[int]) -> tuple[int, ...]:
        """The token ids that a prompt adds behind `history`, without the tokens that a text or a chat begins with.

        Raises:
            UnsupportedParameter: the prompt is a chat, and the model has no chat template that can continue one.
            FieldInvalid: the chat template refuses the messages.
        """
        match prompt:
            case TextPrompt(text) if history:
                return self._encode(text, False)
            case ChatPrompt(messages) if history:
                return self._encode_turn(messages, history[-1])
        return self.encode(prompt)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token on its own; for a special token, those of its name."""
        return token_bytes(self._tokenizer, token)

    def _encode(self, text: str, special: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=special, verbose=False))

    def _encode_turn(self, messages: Sequence[Message], last: int) -> tuple[int, ...]:
        """What the chat template puts behind an assistant's message, without its first token where that is `last`."""
        before = (Message("user", "?"), Message("assistant", _MARK))
        _, mark, rest = self._render((*before, *messages)).rpartition(_MARK)
        if not mark:
            raise UnsupportedParameter("this model's chat template cannot continue a session", "messages")
        ids = self._encode(rest, False)
        return ids[1:] if ids[:1] == (last,) else ids

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        if self._tokenizer.chat_template is None:
            raise UnsupportedParameter("this model has no chat template: use /v1/completions", "messages")
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise FieldInvalid(f"the model's chat template refuses the messages: {error}", "messages") from error
        return str(text)

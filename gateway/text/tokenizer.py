"""Tokenizer of a model: encodes prompts and decodes token ids."""

import inspect
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from gateway.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from gateway.text.control_names import ControlNames
from gateway.text.token_bytes import decode_of, longest_token, token_bytes
from gateway.tools.arguments import HugeNumbers
from gateway.tools.formats import format_of, knows_tools
from gateway.tools.template import Turn, described
from gateway.tools.thinking import AUTO
from gateway.tools.turns import PLAIN, CallStyle, turns_of
from gateway.tools.values import Message
from specdec.errors import ConfigError, ContextLengthExceeded, FieldInvalid, UnsupportedParameter
from specdec.sampling.vocabulary import fingerprint

_PROBE_CHARS = 4
"""ASCII characters per token of room in the first prefix of a long text that is tried; one of any others."""
_MARGIN = 2
_SPELLED = 65_536
"""Most tokens whose bytes are kept."""
_PROBE = "a"
"""Text that reveals the tokens which a tokenizer adds to every text."""
_ONLY_IDS = {"return_attention_mask": False, "return_token_type_ids": False}
"""Options without which a tokenizer also writes lists as long as that of the ids, which takes the interpreter lock."""
_MARK = "\u241fanswer\u241f"
"""Marker of the end of an assistant's message in rendered text."""


class ModelTokenizer:
    """Hugging Face tokenizer. A long prompt takes seconds, so `PromptEncoder` calls it on threads."""

    def __init__(self, tokenizer: Any, names_as_tokens: bool = False, reasoning_parser: str = AUTO) -> None:
        """Wrap a tokenizer of transformers.

        Args:
            tokenizer: tokenizer to wrap.
            names_as_tokens: whether names of control tokens in messages become these tokens. Always so if it is slow.
            reasoning_parser: format of thinking, as returned by `gateway.tools.thinking.check_parser`.
        """
        self._tokenizer = tokenizer
        self._names = None if names_as_tokens or not tokenizer.is_fast else ControlNames(tokenizer)
        self.decode = decode_of(tokenizer)
        """Decoder from token ids to text, without special tokens."""
        self.fingerprint = fingerprint(tokenizer.get_vocab())
        """Hash of the vocabulary, which must equal that of every verifier."""
        self.longest_token = longest_token(tokenizer)
        """Length in bytes of the longest token."""
        self._opening = _opening(tokenizer)
        self._token_bytes = lru_cache(_SPELLED)(partial(token_bytes, tokenizer))
        templates = _templates(tokenizer).values()
        self._call_styles = {template: _call_style(tokenizer, template) for template in templates}
        self.tool_format = format_of("\n".join(templates), self.decode.special.values(), reasoning_parser)
        """Format of the model's tool calls, detected from its chat template."""

    @classmethod
    def load(cls, path: Path, names_as_tokens: bool = False, reasoning_parser: str = AUTO) -> "ModelTokenizer":
        """Load from a local model folder; the constructor describes the options.

        Raises:
            ConfigError: the folder has no loadable tokenizer.
        """
        from transformers import AutoTokenizer

        if not path.is_dir():
            raise ConfigError(f"model.path {path}: no such folder")
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            return cls(tokenizer, names_as_tokens, reasoning_parser)
        except Exception as error:  # a broken folder can fail in any way
            raise ConfigError(f"model.path {path}: no tokenizer that loads: {' '.join(str(error).split())}") from error

    def encode(self, prompt: Prompt, room: int = sys.maxsize) -> tuple[int, ...]:
        """Return the token ids of a prompt, like `encode_after` without a history. A TokenPrompt stays unchanged."""
        match prompt:
            case TokenPrompt(tokens):
                return tokens
            case TextPrompt(text, special):
                return self._encode(text, special, room)
            case ChatPrompt():
                return self._begun(self._encode_rendered(*self._render(prompt), room), prompt.special)

    def encode_after(self, prompt: Prompt, history: Sequence[int], room: int = sys.maxsize) -> tuple[int, ...]:
        """Return the token ids that a prompt adds after `history`, without the tokens that begin a text or a chat.

        Args:
            prompt: prompt to tokenize.
            history: tokens before the prompt.
            room: free tokens; a text of more than twice as many is refused before it is tokenized whole.

        Raises:
            ContextLengthExceeded: a text was refused.
            UnsupportedParameter: the prompt is a chat, and the chat template is missing or cannot continue one.
            FieldInvalid: the chat template refuses the messages.
        """
        match prompt:
            case TextPrompt(text) if history:
                return self._encode(text, False, room)
            case ChatPrompt() if history:
                return self._encode_turn(prompt, history[-1], room)
        return self.encode(prompt, room)

    def encode_last(self, prompt: TextPrompt | ChatPrompt, history: Sequence[int], keep: int) -> tuple[int, ...]:
        """Return the last `keep` token ids of `encode_after`.

        Only the end of a long text is tokenized, with room for twice as many tokens. Earlier text does not change the
        kept tokens.
        """
        most = _MARGIN * keep * self.longest_token
        match prompt:
            case TextPrompt(text):
                prompt = replace(prompt, text=text[-most:])
            case ChatPrompt() if not history:
                text, mark = self._render(prompt)
                return self._begun(self._rendered_ids(text[-most:], mark), prompt.special)[-keep:]
        return self.encode_after(prompt, history)[-keep:]

    def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of words to ban, like vLLM: each at the start of a text, and after a space.

        The form after a space is omitted if it has the same first token or another number of tokens.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            alone = self._ids(word.lstrip(), False)
            spaced = self._ids(f" {word.lstrip()}", False)
            found |= {alone: None} if alone else {}
            if spaced and len(spaced) == len(alone) and spaced[0] != alone[0]:
                found[spaced] = None
        return tuple(found)

    def written(self, tokens: Sequence[int]) -> list[str]:
        """Return each token in the vocabulary's notation."""
        return [str(each) for each in self._tokenizer.convert_ids_to_tokens(list(tokens))]

    def spelled(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, with special tokens by name."""
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a single token; for a special token, those of its name."""
        return self._token_bytes(token)

    def _encode(self, text: str, special: bool, room: int) -> tuple[int, ...]:
        """Tokenize a raw text."""
        return _in_parts(text, room, "prompt", lambda part: self._ids(part, special))

    def _encode_rendered(self, text: str, mark: str, room: int) -> tuple[int, ...]:
        """Tokenize text rendered by `_render`."""
        return _in_parts(text, room, "messages", lambda part: self._rendered_ids(part, mark))

    def _ids(self, text: str, special: bool) -> tuple[int, ...]:
        ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False, **_ONLY_IDS)
        return self._begun(tuple(ids), special)

    def _begun(self, ids: tuple[int, ...], special: bool) -> tuple[int, ...]:
        """Return the ids; `special` prepends the tokens that begin a text, unless they are present."""
        begins = special and ids[: len(self._opening)] != self._opening
        return (*self._opening, *ids) if begins else ids

    def _rendered_ids(self, text: str, mark: str) -> tuple[int, ...]:
        return tuple(self._names.encode(text, mark)) if self._names and mark else self._ids(text, False)

    def _encode_turn(self, prompt: ChatPrompt, last: int, room: int) -> tuple[int, ...]:
        """Tokenize the chat template's text after an assistant's message, without a first token equal to `last`."""
        before = (Message("user", "?"), Message("assistant", _MARK))
        brings_results = bool(prompt.called) and prompt.messages[0].role == "tool"
        framed = replace(prompt, messages=(*before, *prompt.messages))
        if brings_results:
            framed = replace(prompt, messages=before, opens_answer=False, continues_last=False)
        text, mark = self._render(framed)
        _, end, rest = text.rpartition(_MARK)
        if not end:
            raise UnsupportedParameter("this model's chat template cannot continue a session", "messages")
        if brings_results:  # the text that closes an answer comes from the template, so nothing in it is hidden
            results, mark = self._results(prompt)
            rest += results
        ids = self._encode_rendered(rest, mark, room)
        return ids[1:] if ids[:1] == (last,) else ids

    def _template(self, tools: bool) -> str:
        """Return the chat template, preferring `tool_use` if `tools` is true; raises UnsupportedParameter."""
        known = _templates(self._tokenizer)
        for name in ("tool_use", "default") if tools else ("default",):
            if name in known:
                return known[name]
        if known:
            names = ", ".join(sorted(known))
            raise UnsupportedParameter(f"this model's chat templates are {names}, and none is the default", "messages")
        raise UnsupportedParameter("this model has no chat template: use /v1/completions", "messages")

    def _results(self, prompt: ChatPrompt) -> tuple[str, str]:
        """Render the text after the previous turn's calls, which the template may read; returns like `_render`."""
        before = (Message("user", "?"), Message("assistant", "", prompt.called))
        known, own = self._render(replace(prompt, messages=before, opens_answer=False, continues_last=False))
        whole, mark = self._render(replace(prompt, messages=(*before, *prompt.messages)))
        known = known.replace(own, mark) if own else known
        shared = next((at for at, pair in enumerate(zip(known, whole, strict=False)) if pair[0] != pair[1]), len(known))
        return whole[shared:], mark

    def _render(self, prompt: ChatPrompt) -> tuple[str, str]:
        """Render the conversation; return the text and the mark that hides names in it, empty if none is hidden."""
        from jinja2 import TemplateError

        template, arguments = self._template(bool(prompt.tools)), prompt.template_arguments
        for name in arguments.keys() & inspect.signature(self._tokenizer.apply_chat_template).parameters.keys():
            raise FieldInvalid(f"chat_template_kwargs: {name} is not the template's", "chat_template_kwargs")
        huge = HugeNumbers(secrets.token_hex(8))
        turns: Sequence[Turn] = turns_of(prompt.messages, self.tool_format.name, huge, self._call_styles[template])
        tools, documents = prompt.tools, prompt.documents
        nested = {name: each for name, each in arguments.items() if not isinstance(each, str)}
        mark = self._names.mark_for(turns, tools, documents, nested) if self._names else ""
        if self._names and mark:
            turns = self._names.hidden(turns, mark)
            tools = tuple(self._names.hidden_tool(tool, mark) for tool in tools)
            documents, nested = self._names.hidden_texts((documents, nested), mark)
        options: dict[str, Any] = {"tools": [tool.described for tool in tools]} if tools else {}
        if not knows_tools(template):
            turns, options = described(turns, tools), {}
        try:
            text = _rendered(
                self._tokenizer,
                template,
                turns,
                add_generation_prompt=prompt.opens_answer,
                continue_final_message=prompt.continues_last,
                documents=[dict(each) for each in documents] or None,
                **options,
                **{**arguments, **nested},
            )
        except TemplateError as error:
            raise FieldInvalid(f"the model's chat template refuses the messages: {error}", "messages") from error
        except Exception as error:  # a template is code from the model's folder and may raise anything
            said = f"{type(error).__name__}: {error}"
            if not arguments:
                raise FieldInvalid(f"the model's chat template fails on the messages: {said}", "messages") from error
            message = f"the model's chat template fails with chat_template_kwargs: {said}"
            raise FieldInvalid(message, "chat_template_kwargs") from error
        return huge.restore(text), mark


def _templates(tokenizer: Any) -> dict[str, str]:
    """Return the chat templates of a tokenizer by name; a single one is named `default`."""
    given = tokenizer.chat_template
    named = given if isinstance(given, dict) else {"default": given} if given is not None else {}
    return {name: str(template) for name, template in named.items()}


def _rendered(tokenizer: Any, template: str, turns: Sequence[Turn], **options: Any) -> str:
    """Render turns like `apply_chat_template`, which leaves out a content that is None."""
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {**tokenizer.special_tokens_map, **options}
    (text,), _ = render_jinja_template(conversations=[list(turns)], chat_template=template, **variables)
    return str(text)


def _call_style(tokenizer: Any, template: str) -> CallStyle:
    """Return the form of calls that a template accepts."""

    def render(turns: Sequence[Turn]) -> str:
        try:
            return _rendered(tokenizer, template, turns)
        except Exception:  # noqa: BLE001 - a template is code from the model's folder and may raise anything
            return ""

    return CallStyle.of(render) if knows_tools(template) else PLAIN


def _opening(tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that a tokenizer prepends to every text. Appended tokens are not part of a prompt."""
    framed = tokenizer.encode(_PROBE, add_special_tokens=True, verbose=False)
    plain = tokenizer.encode(_PROBE, add_special_tokens=False, verbose=False)
    starts = (at for at in range(len(framed)) if framed[at : at + len(plain)] == plain)
    return tuple(framed[: next(starts, 0)])


def _in_parts(text: str, room: int, param: str, encode: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
    """Tokenize a text; for a long one, try prefixes of doubling length first and refuse it if one is too long.

    Tokenization needs far more memory than the text. Text after a prefix changes only the tokens near the prefix's
    end, far fewer than the margin.
    """
    probe = max(room, 1) * (_PROBE_CHARS if text.isascii() else 1)
    while probe < len(text):
        if len(encode(text[:probe])) > _MARGIN * room:
            raise ContextLengthExceeded(f"{param} has over {room} tokens, for which there is room", param)
        probe *= 2
    return encode(text)

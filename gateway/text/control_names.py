"""Prevents control-token injection: names of control tokens in callers' texts stay plain text.

The one exception is a string that is itself a value of `chat_template_kwargs`, which a template reads as a variable.

Before a chat template is rendered, a mark is inserted between the characters of each such name. Text from the template
itself is tokenized as usual; text with marks is tokenized without added tokens, after the marks are removed.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Normalizer

from gateway.tools.template import Turn
from gateway.tools.values import Tool

_Value = TypeVar("_Value")

_MARKS = range(0xE000, 0xF900)
"""Private-use characters, of which one that the prompt does not contain serves as the mark."""
_WINDOW = 16 * 1024
"""Characters of a text in which names are searched in one call."""
_GUARD = "\U000ffffd\U0010fffd"
"""Artificial control token. Text after it is tokenized as after any other control token."""


class ControlNames:
    """Names of a tokenizer's added tokens, special or not, except those that are ordinary text."""

    def __init__(self, tokenizer: Any) -> None:
        """Args: tokenizer: a fast Hugging Face tokenizer."""
        added = tokenizer.added_tokens_decoder
        named = {token: each for token, each in added.items() if not _is_ordinary(each.content)}
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        self._added = frozenset(added)
        self._named = frozenset(named)
        self._unknown: str | None = getattr(self._backend.model, "unk_token", None) or tokenizer.unk_token
        self._any = _finders(list(named.values()), self._backend)
        self._special = _finders([each for each in named.values() if each.special], self._backend)

    def mark_for(self, turns: Sequence[Turn], tools: Sequence[Tool], *others: Any) -> str:
        """Return a character that no text of the prompt contains; empty if no text contains a name to hide."""
        texts = [*_texts(turns), *_texts([tool.described for tool in tools]), *_texts(others)]
        if not any(finder.finds_in(text) for text in texts for finder in self._any):
            return ""
        everything = "".join(texts)
        return next(mark for mark in map(chr, _MARKS) if mark not in everything and _escaped(mark) not in everything)

    def hidden(self, turns: Sequence[Turn], mark: str) -> list[Turn]:
        """Return the turns with names hidden. Answers of the model keep the names of non-special tokens."""
        return [
            {
                key: value if key == "role" else self._hidden(value, mark, _is_answer(turn, key))
                for key, value in turn.items()
            }
            for turn in turns
        ]

    def hidden_tool(self, tool: Tool, mark: str) -> Tool:
        """Return the tool with names hidden."""
        name, described = (str(self._hidden(text, mark)) for text in (tool.name, tool.description))
        schema = json.dumps(self._hidden(tool.schema, mark), ensure_ascii=False)
        return replace(tool, name=name, description=described, parameters=schema)

    def hidden_texts(self, value: _Value, mark: str) -> _Value:
        """Return documents or template arguments with names hidden in all their texts, at any depth."""
        found: _Value = self._hidden(value, mark)
        return found

    def encode(self, rendered: str, mark: str) -> list[int]:
        """Tokenize a rendered prompt whose names are hidden with `mark`."""
        rendered = rendered.replace(_escaped(mark), mark)
        found = encoded(self._backend, rendered)
        ids, start, stretch = list[int](), 0, list[int]()
        for token, (begin, end) in zip(found.ids, found.offsets, strict=True):
            if token in self._added and self._is_written(token, rendered[begin:end]):
                ids += [*self._stretch(rendered[start:begin], stretch, mark, start > 0), token]
                start, stretch = end, []
            else:
                stretch.append(token)
        return ids + self._stretch(rendered[start:], stretch, mark, start > 0)

    def _stretch(self, text: str, ids: list[int], mark: str, follows: bool) -> list[int]:
        """Tokenize text between two added tokens; return `ids`, its known tokens, if nothing is hidden in it."""
        return self._plain(text.replace(mark, ""), follows) if mark in text else ids

    def _plain(self, text: str, follows: bool) -> list[int]:
        """Tokenize text without control tokens; the flag says whether an added token precedes it."""
        guard = _GUARD if follows else ""
        found = encoded(self._without_added, guard + text)
        known = [(token, span) for token, span in zip(found.ids, found.offsets, strict=True) if token != self._guard]
        cuts = [
            begin + 1 - len(guard)
            for token, (begin, end) in known
            if token in self._named and end - begin > 1 and self._is_written(token, (guard + text)[begin:end])
        ]
        if not cuts:
            return [token for token, _ in known]
        parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return [token for index, part in enumerate(parts) for token in self._plain(part, follows or index > 0)]

    def _is_written(self, token: int, text: str) -> bool:
        """Whether a text names an added token; a token for unknown text is also that of text without a name."""
        return text.strip() == self._unknown or str(self._backend.id_to_token(token)) != self._unknown

    def _hidden(self, value: Any, mark: str, answer: bool = False) -> Any:
        match value:
            case str():
                for finder in self._special if answer else self._any:
                    value = _with_mark(value, finder, mark)
                return value
            case Mapping():
                return {self._hidden(key, mark): self._hidden(each, mark) for key, each in value.items()}
            case list():
                return [self._hidden(each, mark) for each in value]
            case tuple():
                return tuple(self._hidden(each, mark) for each in value)
        return value

    @cached_property
    def _without_added(self) -> Tokenizer:
        """Tokenizer without added tokens, created on first use."""
        described = json.loads(self._backend.to_str())
        plain = Tokenizer.from_str(json.dumps(described | {"added_tokens": [], "post_processor": None}))
        plain.add_special_tokens([AddedToken(_GUARD, special=True, normalized=False)])
        return plain

    @cached_property
    def _guard(self) -> int | None:
        return self._without_added.token_to_id(_GUARD)


def _is_ordinary(name: str) -> bool:
    """Whether the name of an added token is ordinary text, such as a run of spaces or a word."""
    return name.isspace() or name.isalnum()


def _is_answer(turn: Turn, key: str) -> bool:
    return turn["role"] == "assistant" and key in ("content", "reasoning_content", "thinking")


def encoded(tokenizer: Tokenizer, text: str) -> Encoding:
    """Tokenize a text without added control tokens, and without the interpreter lock, which `encode` holds."""
    (found,) = tokenizer.encode_batch([text], add_special_tokens=False)
    return found


class Finder:
    """Finds names in texts, from left to right, the longest name first."""

    def __init__(self, names: Sequence[str], normalizer: Normalizer | None = None) -> None:
        """Args: names: texts to find; normalizer: also finds texts that it turns into names; None finds only names."""
        self._longest = max(map(len, names), default=0)
        self._window = sys.maxsize if normalizer else _WINDOW  # a normalizer may shorten any length of text to a name
        self._tokenizer = Tokenizer(WordLevel({"": 0}, unk_token=""))  # everything but names is token 0
        if normalizer:
            self._tokenizer.normalizer = normalizer
        known = [AddedToken(name, special=True, normalized=normalizer is not None) for name in names]
        self._tokenizer.add_special_tokens(known)

    def finds_in(self, text: str) -> bool:
        """Whether a text contains a name."""
        return next(self.spans(text), None) is not None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each name, window by window; with a normalizer, the whole text is one window."""
        at = after = 0
        while at < len(text):
            stop = at + self._window
            found = encoded(self._tokenizer, text[at : stop + self._longest])
            for token, (begin, end) in zip(found.ids, found.offsets, strict=True):
                if token and at + begin < stop:  # the next window has the others, as long as they are
                    yield at + begin, at + end
                    after = at + end
            at = max(stop, after)


def _finders(named: Sequence[AddedToken], backend: Tokenizer) -> list[Finder]:
    """Return finders of the names, and of texts that a tokenizer's normalizer, as of upper case, turns into names."""
    normalized = [each.content for each in named if each.normalized] if backend.normalizer else []
    return [Finder([each.content for each in named]), *([Finder(normalized, backend.normalizer)] if normalized else [])]


def _with_mark(text: str, finder: Finder, mark: str) -> str:
    """Return the text with the mark after each character of a name, so that it contains no name."""
    marked, at = list[str](), 0
    for begin, end in finder.spans(text):
        marked += [text[at:begin], *(character + mark for character in text[begin:end])]
        at = end
    return "".join(marked) + text[at:]


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, each in value.items():
                yield from (*_texts(key), *_texts(each))
        case list() | tuple():
            for each in value:
                yield from _texts(each)


def _escaped(mark: str) -> str:
    """Return the mark as ASCII-only JSON escapes it."""
    return json.dumps(mark)[1:-1]

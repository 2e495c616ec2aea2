"""Thinking that precedes a grammar: text up to a closing tag, which may be special tokens, limited by a budget."""

import json
import re
from collections.abc import Collection, Sequence
from typing import Protocol

from specdec.grammar.budget import BoundThinking
from specdec.sampling.grammar import spelled, token_name

_OR = "\t"
"""Separator of the spellings of a tag, of which the first is the one to force."""
_BREAK = r"BREAK: /\n{1,4}/"
"""Line breaks between the thinking and the constrained text."""


class GrammarVocabulary(Protocol):
    """The tokens of a model."""

    @property
    def tokens(self) -> Sequence[bytes]:
        """Bytes of each id; a special token has the bytes of its name in grammars."""

    @property
    def special(self) -> Sequence[str]:
        """Names of the special tokens."""

    def __call__(self, text: str) -> list[int]:
        """Return tokens that spell a text; none is special."""


def thinking_of(tags: str, budget: int, vocabulary: GrammarVocabulary) -> BoundThinking:
    """Return the thinking budget for a model. `tags` has the format of `Grammar.behind`."""
    *opening, closing = tags.split("\n")[:2]
    own = closing.split(_OR)[0]
    ids = [token for piece in spelled(own, vocabulary.special) for token in _ids(piece, vocabulary)]
    openings = [each for tag in opening for each in _spellings(tag, vocabulary.special)]
    return BoundThinking(openings, _spellings(closing, vocabulary.special), ids, budget, vocabulary.tokens)


def behind(tags: str, grammar: str, special: Collection[str]) -> str:
    """Return a grammar, in the library's notation, that puts the model's thinking before `grammar`.

    Args:
        tags: the closing tag alone, or the opening and closing tags of optional thinking on two lines. A third
            line holds the text before the grammar when the thinking is omitted. Tabs separate spellings of a tag.
        grammar: constraint on the rest, in the library's notation: JSON or Lark.
        special: names of the special tokens.
    """
    opening, closing, lead = _lines(tags)
    starts = ["thought BREAK? @form"]
    if opening:
        opened = " | ".join(_tag(each, special) for each in opening.split(_OR))
        starts = [f"BREAK? ({opened}) {starts[0]}", f"{_tag(lead, special)} @form" if lead else "@form"]
    rules = [f"start: {' | '.join(starts)}", _BREAK]
    if spelled(closing, special)[0] in special:
        rules += [f"thought: TEXT {_tag(closing, special)}", "TEXT: /(?s:.*)/"]
    else:
        rules.append(f"thought[lazy]: /(?s:.*)({'|'.join(map(_pattern, closing.split(_OR)))})/")
    (form,) = json.loads(grammar)["grammars"] if grammar.startswith("{") else ({"lark_grammar": grammar},)
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, form | {"name": "form"}]}, ensure_ascii=False)


def _lines(tags: str) -> tuple[str, str, str]:
    """Return the opening tag, the closing tag, and the text before the grammar when the thinking is omitted."""
    lines = tags.split("\n")
    if len(lines) == 1:
        return "", lines[0], ""
    return lines[0], lines[1], "".join(lines[2:])


def _tag(text: str, special: Collection[str]) -> str:
    pieces = spelled(text, special)
    return " ".join(token_name(each) if each in special else json.dumps(each, ensure_ascii=False) for each in pieces)


def _pattern(text: str) -> str:
    return re.sub(r"([][(){}.*+?^$|/\\])", r"\\\1", text)


def _spellings(tag: str, special: Collection[str]) -> tuple[bytes, ...]:
    """Return the spellings of a tag and its alternatives: as plain text, and as its tokens spell it."""
    found: dict[bytes, None] = {}
    for text in tag.split(_OR):
        named = "".join(token_name(each) if each in special else each for each in spelled(text, special))
        found |= {text.encode(): None, named.encode(): None}
    return tuple(found)


def _ids(piece: str, vocabulary: GrammarVocabulary) -> list[int]:
    if piece in vocabulary.special:
        return [vocabulary.tokens.index(token_name(piece).encode())]
    return vocabulary(piece)

"""What a model thinks before a grammar: text up to a tag, which may be special tokens, and no longer than a budget."""

import json
import re
from collections.abc import Collection, Sequence
from typing import Protocol

from specdec.grammar.budget import BoundThinking
from specdec.sampling.grammar import spelled, token_name

_BREAK = r"BREAK: /\n{1,4}/"
"""Lines between the thinking and what the grammar binds."""


class GrammarVocabulary(Protocol):
    """The tokens of a model."""

    @property
    def tokens(self) -> Sequence[bytes]:
        """The bytes of each id; special tokens have those of the names that grammars use."""

    @property
    def special(self) -> Sequence[str]:
        """The names of the special tokens."""

    def __call__(self, text: str) -> list[int]:
        """Tokens that spell a text, none of them special."""


def thinking_of(tags: str, budget: int, vocabulary: GrammarVocabulary) -> BoundThinking:
    """The thinking between tags, given as for `behind`, in the tokens of a model."""
    *opening, closing = tags.split("\n")[:2]
    ids = [token for piece in spelled(closing, vocabulary.special) for token in _ids(piece, vocabulary)]
    openings = [each for tag in opening for each in _spellings(tag, vocabulary.special)]
    return BoundThinking(openings, _spellings(closing, vocabulary.special), ids, budget, vocabulary.tokens)


def behind(tags: str, grammar: str, special: Collection[str]) -> str:
    """The grammar, in the library's notation, behind what the model thinks.

    Args:
        tags: the tag that ends the thinking, or on two lines those around thinking that may be left out; on a third
            line what stands before the grammar then.
        grammar: what is bound, in the library's notation: JSON, or a text in Lark's.
        special: the names of the special tokens.
    """
    opening, closing, lead = _lines(tags)
    starts = ["thought BREAK? @form"]
    if opening:
        starts = [f"BREAK? {_tag(opening, special)} {starts[0]}", f"{_tag(lead, special)} @form" if lead else "@form"]
    rules = [f"start: {' | '.join(starts)}", _BREAK]
    if spelled(closing, special)[0] in special:
        rules += [f"thought: TEXT {_tag(closing, special)}", "TEXT: /(?s:.*)/"]
    else:
        rules.append(f"thought[lazy]: /(?s:.*){_pattern(closing)}/")
    (form,) = json.loads(grammar)["grammars"] if grammar.startswith("{") else ({"lark_grammar": grammar},)
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, form | {"name": "form"}]}, ensure_ascii=False)


def _lines(tags: str) -> tuple[str, str, str]:
    """The opening tag, the closing one, and what stands before the grammar where nothing is thought."""
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
    """A tag as a text, and as its tokens spell it."""
    named = "".join(token_name(each) if each in special else each for each in spelled(tag, special))
    return tuple({tag.encode(): None, named.encode(): None})


def _ids(piece: str, vocabulary: GrammarVocabulary) -> list[int]:
    if piece in vocabulary.special:
        return [vocabulary.tokens.index(token_name(piece).encode())]
    return vocabulary(piece)

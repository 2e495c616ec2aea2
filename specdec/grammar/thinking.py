"""Puts what a model thinks before a grammar: text up to a tag, which may be a special token."""

import json
import re
from collections.abc import Collection

from specdec.sampling.grammar import token_name

_BREAK = r"BREAK: /\n{1,4}/"
"""Lines between the thinking and what the grammar binds."""


def behind(tags: str, grammar: str, special: Collection[str]) -> str:
    """The grammar, in the library's notation, behind what the model thinks.

    Args:
        tags: the tag that ends the thinking, or on two lines those around thinking that may be left out.
        grammar: what is bound, in the library's notation: JSON, or a text in Lark's.
        special: the names of the special tokens.
    """
    *opening, closing = tags.split("\n")
    starts = ["thought BREAK? @form"]
    if opening:
        starts = [f"BREAK? {_tag(opening[0], special)} {starts[0]}", "@form"]
    rules = [f"start: {' | '.join(starts)}", _BREAK]
    if closing in special:
        rules += [f"thought: TEXT {token_name(closing)}", "TEXT: /(?s:.*)/"]
    else:
        rules.append(f"thought[lazy]: /(?s:.*){_pattern(closing)}/")
    (form,) = json.loads(grammar)["grammars"] if grammar.startswith("{") else ({"lark_grammar": grammar},)
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, form | {"name": "form"}]}, ensure_ascii=False)


def _tag(text: str, special: Collection[str]) -> str:
    return token_name(text) if text in special else json.dumps(text, ensure_ascii=False)


def _pattern(text: str) -> str:
    return re.sub(r"([][(){}.*+?^$|/\\])", r"\\\1", text)

"""Rewrites a Lark grammar for texts inside a JSON string, where quotes, backslashes and control characters are escaped.

Every terminal becomes a rule over single characters, each written as in JSON. No written character is the beginning of
another, so the grammar library's lexer, which takes the longest match, never takes too much.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from specdec.errors import FieldInvalid

_ESCAPED = ('"', "\\", "\x7f", *map(chr, range(32)))
"""Characters that are written as an escape; DEL, because the notation of Lark excludes it."""
_RAW = r'["\\\x00-\x1f\x7f]'
_CHARACTER = "SPECDEC_CHARACTER_"
_TERMINAL = "specdec_terminal_"
"""Prefixes of the names of characters, and of the rules that replace terminals."""
_TOKEN = re.compile(
    r"""(?P<comment>(?://|\#)[^\n]*)
    |(?P<range>"(?:\\.|[^"\\])+"\s*\.\.\s*"(?:\\.|[^"\\])+")
    |(?P<string>"(?:\\.|[^"\\])*")(?P<caseless>i?)
    |/(?P<regex>(?:\\.|[^/\\])+)/(?P<flags>[a-z]*)
    |%import\s+common\s*\.\s*(?P<common>\w+)(?:\s*->\s*(?P<alias>\w+))?
    |(?P<foreign>%\w+|<[^<>\s]+>|@\w+|&|~(?!\s*\d)|\w+\s*\[[^\]\n]*\]\s*:)
    |(?P<terminal>\b_?[A-Z][A-Z0-9_]*\b)
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMON: Mapping[str, str] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
}
"""Lark's common terminals."""
_SINGLE = re.compile(r"[^.\[\\]|\\[^dDsSwW].*", re.DOTALL)
"""Matches an atom that is one character."""
_CLASSES = {(".", False): r"[^\n]", (".", True): r"\x00-\x{10FFFF}"}
"""Atoms that are no classes inside a class, with the flag `s`, as classes."""
_LAZY = re.compile(r"(?<=[*+?}])[?+]")
_PART = re.compile(
    r"""\\(?:x[0-9a-fA-F]{2}|[xu]\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|p\{\w+\}|[^xuPpbBAzZ])
    |\[\^?\]?(?:\\.|[^\]\\\[])*\]
    |\((?:\?(?:[imsu-]*[:)]|P?<\w+>)|(?!\?))
    |\{\d+(?:,\d*)?\}|\{,\d+\}
    |[^\\\[(^${]""",
    re.VERBOSE | re.DOTALL,
)
"""Matches a part of a regular expression: an atom, a parenthesis or an operator."""


def in_json(grammar: str, param: str) -> str:
    """Return the grammar of the same texts, written inside a JSON string.

    Raises:
        FieldInvalid: a part of the grammar cannot be rewritten. The error quotes it and names the field `param`.
    """
    return _Rewriter(param).grammar(grammar)


class _Rewriter:
    """Rewrites one grammar."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._characters: dict[str, str] = {}
        """Names of the single characters used, by their expressions."""

    def grammar(self, text: str) -> str:
        rules = "".join(map(self._rewritten, _TOKEN.finditer(text)))
        characters = (f"{name}: /{expression}/" for expression, name in self._characters.items())
        return "\n".join([rules, *characters])

    def _rewritten(self, match: re.Match[str]) -> str:
        found = match.groupdict()
        if found["foreign"] is not None or (found["common"] and found["common"] not in _COMMON):
            raise self._unsupported(match[0])
        if found["terminal"] is not None:
            return _rule(match[0])
        if found["common"] is not None:
            return f"{_rule(found['alias'] or found['common'])}: {self._expression(_COMMON[found['common']], '')}"
        if found["range"] is not None:
            first, last = map(self._literal, re.findall(r'"(?:\\.|[^"\\])+"', match[0]))
            return self._expression(f"[{re.escape(first)}-{re.escape(last)}]", "")
        if found["string"] is not None:
            return self._expression(re.escape(self._literal(found["string"])), found["caseless"])
        if found["regex"] is not None:
            return self._expression(found["regex"].replace(r"\/", "/"), found["flags"])
        return "" if found["comment"] is not None else match[0]

    def _literal(self, text: str) -> str:
        """Return the text of a Lark string."""
        try:
            return str(json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text), strict=False))
        except ValueError as error:
            raise self._unsupported(text) from error

    def _expression(self, text: str, flags: str) -> str:
        """Return a regular expression as an expression of rules."""
        refused = partial(self._unsupported, f"/{text}/{flags}")
        if "x" in flags:
            raise refused()
        parts = [self._named(part) for part in _Expression(text, flags, refused).parts()]
        filled = [part if before not in "(|" or part not in "|)" else f'"" {part}' for before, part in _pairs(parts)]
        return f"({' '.join(filled)}"

    def _named(self, part: str) -> str:
        """Return an operator unchanged, and an atom as the name of its character."""
        if not part.startswith("/"):
            return part
        return self._characters.setdefault(part[1:].replace("/", r"\/"), f"{_CHARACTER}{len(self._characters)}")

    def _unsupported(self, part: str) -> FieldInvalid:
        place = self._param
        return FieldInvalid(f"{place}: {part} cannot be a part of a grammar inside JSON", place)


class _Expression:
    """Regular expression that is divided into operators and atoms."""

    def __init__(self, text: str, flags: str, refused: Callable[[], FieldInvalid]) -> None:
        self._text = text
        self._refused = refused
        self._flags = [frozenset(flags)]
        """Flags of the open groups, the innermost last."""

    def parts(self) -> Iterator[str]:
        """Yield operators as in Lark, and atoms with `/` before them; raises FieldInvalid."""
        at = 0
        while at < len(self._text):
            found = _PART.match(self._text, at)
            if found is None:
                raise self._refused()
            if not _LAZY.match(self._text, at):  # a lazy quantifier matches the same texts
                yield self._part(found[0])
            at = found.end()

    def _part(self, part: str) -> str:
        if part.startswith("("):
            return self._open(part)
        if part == ")":
            del self._flags[-1]
            if not self._flags:
                raise self._refused()
            return part
        return part if re.fullmatch(r"[|*+?]|\{.*", part) else self._atom(part)

    def _open(self, part: str) -> str:
        flags = self._flags[-1]
        if re.match(r"\(\?[imsu-]", part):
            on, _, off = part[2:-1].partition("-")
            flags = (flags | frozenset(on)) - frozenset(off)
        if part.endswith(")"):
            self._flags[-1] = flags
            return '""'
        self._flags.append(flags)
        return "("

    def _atom(self, part: str) -> str:
        """Return the expression of a character, or of a class of characters, written as in JSON."""
        flags = re.ASCII | (re.DOTALL if "s" in self._flags[-1] else re.NOFLAG)
        inside = re.sub(r"\\[xu]\{([0-9a-fA-F]+)\}", lambda match: re.escape(chr(int(match[1], 16))), part)
        if re.search("&&|--|~~", part):
            raise self._refused()
        try:
            matches = re.compile("x" if part.startswith(r"\p") else inside, flags).fullmatch
        except (re.error, ValueError, OverflowError) as error:
            raise self._refused() from error
        raw = f"(?i:{part})" if "i" in self._flags[-1] else part
        escapes = "|".join(re.escape(_escape(each)) for each in _ESCAPED if matches(each))
        if not escapes:
            return f"/{raw}"
        if _SINGLE.fullmatch(part):
            return f"/{escapes}"
        return f"/[{_CLASSES.get((part, bool(flags & re.DOTALL)), part)}--{_RAW}]|{escapes}"


def _pairs(parts: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each part with the one before it; the beginning and the end count as parentheses."""
    return zip(["(", *parts], [*parts, ")"], strict=True)


def _rule(terminal: str) -> str:
    return _TERMINAL + terminal.lower()


def _escape(character: str) -> str:
    """Return a character as it is written inside a JSON string."""
    return r"\u007f" if character == "\x7f" else json.dumps(character)[1:-1]

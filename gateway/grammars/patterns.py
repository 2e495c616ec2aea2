"""Rewrites regular expressions of JSON Schemas without look-ahead, and lists the texts that small ones match."""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

from specdec.errors import FieldInvalid

_parser: Any = re._parser  # type: ignore[attr-defined]
_MOST = 64
"""Most texts of an expression that are listed, and most look-aheads that are rewritten."""
_LONGEST = 1024
"""Longest expression whose texts are listed, in characters."""
_MOST_DIGITS = 128
"""Most digits of a decimal number that is rewritten as alternatives."""
_NONE_OF = re.compile(r"\^?\(\?!\^?(?:\[((?!\^)(?:[^\]\\]|\\.)+)\]|(\\[sSdDwW]))\*\$\)")
"""Matches a negative look-ahead that requires at least one character outside a class."""
_AHEAD = re.compile(r"\^\(\?=((?:[^()\\]|\\.)*)\)")
_DIGITS = re.compile(r"\(\?=\[\\d\.\]\{1,(\d{1,9})\}0\*\$\)\\d\{0,(\d{1,9})\}\\\.\\d\{0,(\d{1,9})\}0\*\$?")
"""Matches pydantic's pattern of a decimal number with a bounded number of digits."""


def without_lookahead(pattern: str) -> list[str]:
    """Return expressions that a text must all match, equivalent to the pattern or stricter.

    An expression with a look-ahead that schema libraries do not generate is returned unchanged.
    """
    pattern = _DIGITS.sub(_digits, pattern)
    others: list[str] = []
    while len(others) < _MOST:
        if match := _NONE_OF.match(pattern):
            pattern = "^" + pattern[match.end() :].removeprefix("^")
            others.append(f"[^{match[1] or match[2]}]")
        elif match := _AHEAD.match(pattern):
            pattern = "^" + pattern[match.end() :]
            others.append(f"^(?:{match[1]})")
        else:
            break
    return [pattern, *reversed(others)]


def _digits(match: re.Match[str]) -> str:
    """Return pydantic's pattern of a decimal number as alternatives, one per split of digits around the point.

    A pattern of more digits than any schema library writes is returned unchanged.
    """
    most, before, after = (int(each) for each in match.groups())
    if most > _MOST_DIGITS:
        return match[0]
    shares = sorted({(min(before, ahead), min(after, most - 1 - ahead)) for ahead in range(most)})
    return "(?:" + "|".join(f"\\d{{0,{ahead}}}\\.\\d{{0,{rest}}}" for ahead, rest in shares) + ")$"


def matching(pattern: str, param: str) -> str:
    """Return a Lark expression of the whole texts in which a schema's pattern occurs.

    Raises:
        FieldInvalid: the pattern is invalid, or has an anchor that is not at one of its ends.
    """
    try:
        parsed = list(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise FieldInvalid(f"{param}: the pattern is not valid: {error}", param) from error
    begins = bool(parsed) and (str(parsed[0][0]), str(parsed[0][1])) == ("AT", "AT_BEGINNING")
    ends = len(parsed) > begins and (str(parsed[-1][0]), str(parsed[-1][1])) == ("AT", "AT_END")
    if "AT_" in str(parsed[begins : len(parsed) - ends]):
        raise FieldInvalid(f"{param}: a pattern may have anchors only at its ends", param)
    inside = pattern[begins : len(pattern) - ends]
    before, after = ("" if begins else "(?s:.*)"), ("" if ends else "(?s:.*)")
    return f"{before}(?:{inside}){after}"


def regex(pattern: str) -> str:
    """Return an expression in Lark's notation."""
    inside = re.sub(r"\\.|/", lambda match: match[0] if len(match[0]) == 2 else r"\/", pattern, flags=re.DOTALL)
    return f"/{inside}/" if inside else '""'


def names_of(pattern: str) -> list[str] | None:
    """Return all texts that an anchored expression matches; None if there are many or it is not anchored."""
    if len(pattern) > _LONGEST:
        return None
    try:
        parsed = list(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError):
        return None
    at = [str(argument) for operation, argument in parsed if str(operation) == "AT"]
    if at != ["AT_BEGINNING", "AT_END"] or str(parsed[0][0]) != "AT" or str(parsed[-1][0]) != "AT":
        return None
    try:
        return list(dict.fromkeys(_texts(parsed[1:-1])))
    except _Many:
        return None


class _Many(Exception):
    """Raised if an expression matches too many texts to list."""


def _texts(parsed: Any) -> list[str]:
    found = [""]
    for operation, argument in parsed:
        found = _few(left + right for left, right in product(found, _one(str(operation), argument)))
    return found


def _few(texts: Iterator[str]) -> list[str]:
    found = []
    for text in texts:
        found.append(text)
        if len(found) > _MOST:
            raise _Many
    return found


def _one(operation: str, argument: Any) -> list[str]:
    match operation:
        case "LITERAL":
            return [chr(argument)]
        case "BRANCH":
            return _few(text for branch in argument[1] for text in _texts(branch))
        case "SUBPATTERN" if not argument[1] and not argument[2]:
            return _texts(argument[3])
        case "IN":
            return _few(text for each in argument for text in _in(str(each[0]), each[1]))
        case "MAX_REPEAT" if argument[1] <= _MOST:
            least, most, inner = int(argument[0]), int(argument[1]), _texts(argument[2])
            return _few("".join(text) for count in range(least, most + 1) for text in product(inner, repeat=count))
    raise _Many


def _in(operation: str, argument: Any) -> Iterator[str]:
    match operation:
        case "LITERAL":
            yield chr(argument)
        case "RANGE":
            yield from (chr(code) for code in range(argument[0], argument[1] + 1))
        case _:
            raise _Many

"""A Lark grammar rewritten for JSON strings accepts the escaped forms of the same texts, and no others."""

import json

import pytest

from gateway.grammars.json_lark import in_json
from specdec.errors import FieldInvalid
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar, GrammarKind

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"""
"""Grammar of Codex's `apply_patch`."""
PATCHED = (
    '*** Begin Patch\n*** Update File: a "b".py\n@@ def f():\n-\tprint("\\n")\n+\tprint("é/😀")\n*** End Patch\n',
    "*** Begin Patch\n*** Add File: a\n+\n+/ \\\\ \x7f\n*** End Patch",
    "*** Begin Patch\n*** Delete File: x\n*** End Patch\n",
)
END = 256


def accepts(grammar: str, text: str) -> bool:
    """Whether a text is a complete text of the grammar."""
    masks = GrammarCompiler.of_bytes().compile(Grammar(GrammarKind.LARK, grammar))
    output: list[int] = []
    for token in (*text.encode(), END):
        (mask,) = masks.masks(output)
        if mask is not None and not mask[token // 8] >> token % 8 & 1:
            return False
        output.append(token)
    return True


def escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


@pytest.mark.parametrize("text", PATCHED)
def test_a_patch_is_accepted_escaped(text: str) -> None:
    rewritten = in_json(PATCH, "format")
    assert accepts(PATCH, text)
    assert accepts(rewritten, escaped(text))
    assert not accepts(rewritten, text)
    assert not accepts(rewritten, escaped(text.replace("Begin", "begin")))


@pytest.mark.parametrize(
    ("grammar", "fits", "others"),
    [
        ('start: "a\\"b\\\\"', ['a"b\\'], ["ab", 'a"b']),
        ('start: "a\\n"i', ["a\n", "A\n"], ["a", "a\\N"]),
        (r"start: /[^a]*/", ["", '"\\\n\x01', "bé😀"], ["a", "b\na"]),
        (r"start: /(?s:.)./", ["\nx", 'x"'], ["x\n", "x"]),
        (r"start: /.+/s", ["a\nb"], [""]),
        (r"start: /(?i)\s[a-z]/", [" A", "\tb"], ["a", "\\T"]),
        (r"start: /\x{22}\u0041\t\//", ['"A\t/'], ["A"]),
        ('start: " ".."~"', ["a", '"', "\\", "~"], ["\n", "é"]),
        (
            'start: A "," b\nA: /[0-9]/ // a digit\nb: WS_INLINE "x" ~ 2..3\n%import common.WS_INLINE',
            ["1,\txx"],
            ["1,x"],
        ),
        ("start: ESCAPED_STRING\n%import common.ESCAPED_STRING", ['"a\\n"'], ['"a\n"', '"a']),
        ("start: NUMBER\n%import common.NUMBER", ["3.5"], ["x"]),
        (r"start: /(a|)b{2}(?P<c>c){1,}?/ D" "\nD: /()x*?y??/", ["abbc", "bbccxxy"], ["abc", "bb"]),
        ('start: "abc" | /[a-z]{4}/ | /[^x]*b/ "c"', ["abc", "abcd", 'a"bbc'], ["xbc", "zzz"]),
    ],
)
def test_terminals_are_rewritten_exactly(grammar: str, fits: list[str], others: list[str]) -> None:
    rewritten = in_json(grammar, "format")
    for text in fits:
        assert accepts(rewritten, escaped(text)), text
    for text in others:
        assert not accepts(rewritten, escaped(text)), text


@pytest.mark.parametrize(
    "grammar",
    [
        'start: %json {"type": "string"}',
        "start: <|end|>",
        "start: A\nA: ~/a/",
        "start: A\nA: /a/ & /b/",
        "start: /^a$/",
        "start: /a)/",
        "start[lazy]: /a/",
        "start: /a/\n%ignore WS",
        "start: /[a&&b]/",
        r"start: /\P{L}/",
        "start: /a b/x",
        "start: WS\n%import common (WS)",
        "start: /[[:alpha:]]/",
        "start: /(?=a)b/",
    ],
)
def test_what_cannot_be_rewritten_is_refused_by_name(grammar: str) -> None:
    with pytest.raises(FieldInvalid) as refused:
        in_json(grammar, "tools[0].format")
    assert refused.value.param == "tools[0].format"

"""Translates and compiles what strangers sent as grammars: `python -m gateway.text.grammar_worker`.

A question is JSON with the `kind` and the `text` of a grammar. The answer has the `text` in the notation that the
services read, and an `error` with the `path` of the place in a JSON Schema; both are empty for a good grammar.
"""

import json

from llguidance.gbnf_to_lark import any_to_lark

from gateway.tools.formats import TAGS
from gateway.workers.serving import serve
from specdec.grammar.compiler import GrammarCompiler
from specdec.grammar.mistakes import mistake
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

_STACK = 4 * 2**20
"""Bytes of stack: half of what the threads of the services have, so that what passes here passes there."""
_MEMORY = 2 * 2**30
"""Bytes of address space."""


def examined(compiler: GrammarCompiler, kind: GrammarKind, text: str) -> dict[str, str]:
    """The answer to a question."""
    if kind is GrammarKind.LARK:
        try:
            text = any_to_lark(text)
        except Exception as failure:  # noqa: BLE001 - a translator of text in a hurry may raise anything
            return {"text": "", "error": f"it is neither Lark nor GBNF: {failure}", "path": ""}
        if len(text.encode()) > MAX_GRAMMAR_BYTES:
            return {"text": "", "error": f"in Lark it has over {MAX_GRAMMAR_BYTES} bytes", "path": ""}
    error, path = mistake(compiler, Grammar(kind, text))
    return {"text": text, "error": error, "path": path}


def main() -> None:
    """Answer until the input ends."""
    compiler = GrammarCompiler.of_bytes(sorted(TAGS))

    def answer(question: bytes) -> bytes:
        asked = json.loads(question)
        return json.dumps(examined(compiler, GrammarKind(asked["kind"]), asked["text"])).encode()

    serve(answer, _MEMORY, _STACK)


if __name__ == "__main__":
    main()

"""Worker that translates and compiles untrusted grammars: `python -m gateway.text.grammar_worker`.

A question is JSON with the `kind` and the `text` of a grammar. The answer has the `text` in the notation that the
services read, an `error`, and the `path` of the error in a JSON Schema. Error and path are empty for a valid grammar.
"""

import json

from llguidance.gbnf_to_lark import any_to_lark

from gateway.tools.formats import TAGS
from gateway.workers.serving import serve
from specdec.grammar.compiler import GrammarCompiler
from specdec.grammar.mistakes import mistake
from specdec.sampling.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

_STACK = 4 * 2**20
"""Stack size in bytes: half of the services' thread stacks, so that a grammar accepted here also compiles there."""
_MEMORY = 2 * 2**30
"""Limit of the address space, in bytes."""


def examined(compiler: GrammarCompiler, kind: GrammarKind, text: str) -> dict[str, str]:
    """The answer to a question."""
    if kind is GrammarKind.LARK:
        try:
            text = any_to_lark(text)
        except Exception as failure:  # noqa: BLE001 - the translator may raise anything
            return {"text": "", "error": f"it is neither Lark nor GBNF: {failure}", "path": ""}
        if len(text.encode()) > MAX_GRAMMAR_BYTES:
            return {"text": "", "error": f"in Lark it has over {MAX_GRAMMAR_BYTES} bytes", "path": ""}
    error, path = mistake(compiler, Grammar(kind, text))
    return {"text": text, "error": error, "path": path}


def main() -> None:
    """Answer questions until the input ends."""
    compiler = GrammarCompiler.of_bytes(sorted(TAGS))

    def answer(question: bytes) -> bytes:
        asked = json.loads(question)
        return json.dumps(examined(compiler, GrammarKind(asked["kind"]), asked["text"])).encode()

    serve(answer, _MEMORY, _STACK)


if __name__ == "__main__":
    main()

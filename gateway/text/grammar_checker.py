"""Whether a grammar can be compiled, found out in a process that a bad one may end or keep busy."""

import asyncio
import json
import sys
from collections import OrderedDict
from contextlib import suppress

import structlog

from specdec.errors import FieldInvalid
from specdec.rules.grammar import Grammar

_SECONDS = 5.0
"""Longest time that a grammar may take to be compiled, the start of the process included."""
_REMEMBERED = 256
"""Grammars that are known to be good."""
_SHOWN = 300
"""Characters of the compiler's message that are shown."""

_log = structlog.get_logger()


class GrammarChecker:
    """Checks grammars one after the other; its process is started when there is a first one."""

    def __init__(self) -> None:
        self._good: OrderedDict[str, None] = OrderedDict()
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def check(self, grammar: Grammar | None, param: str) -> None:
        """Raise FieldInvalid, which names the field and the place in it, for a grammar that cannot be compiled."""
        if grammar is None:
            return
        digest = grammar.digest
        if digest not in self._good:
            async with self._turn:
                await self._compile(grammar, param)
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > _REMEMBERED:
            self._good.popitem(last=False)

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _compile(self, grammar: Grammar, param: str) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                found = json.loads(await self._ask(grammar))
        except (TimeoutError, ValueError, OSError) as error:
            _log.warning("grammar_too_complex", digest=grammar.digest, error=repr(error))
            await self.close()
            raise FieldInvalid(f"{param} is too complex to be compiled", param) from error
        except asyncio.CancelledError:
            await self.close()  # its answer would be taken for that of the next question
            raise
        if found["error"]:
            place = param + found["path"]
            raise FieldInvalid(f"{place}: {' '.join(found['error'].split())[:_SHOWN]}", place)

    async def _ask(self, grammar: Grammar) -> bytes:
        """The answer of the process; empty when it died."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "specdec.grammar.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise OSError("the process has no pipes")
        stdin.write(json.dumps({"kind": grammar.kind, "text": grammar.text}).encode() + b"\n")
        await stdin.drain()
        return await stdout.readline()

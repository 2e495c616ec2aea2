"""What each session's grammar lets follow its drafts, so that q is masked as p is.

A draft from an unmasked q is as exact, because q̂ says what it was drawn from, but it is rejected more often. So a
grammar that is not compiled yet, or cannot be, or whose masks take long, costs acceptance and nothing else.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from weakref import WeakKeyDictionary

import structlog

from drafter_service.sessions.draft_session import DraftSession
from specdec.grammar.compiler import GrammarCompiler
from specdec.grammar.state import TokenMasks
from specdec.sampling.distribution import History

_log = structlog.get_logger()


class GrammarMasks:
    """The grammars of all sessions; they are compiled on a thread, so that no step waits for one."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        """Without a compiler, nothing is masked."""
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._states: WeakKeyDictionary[DraftSession, Future[TokenMasks]] = WeakKeyDictionary()

    def history(self, session: DraftSession) -> History:
        """What the distribution of the session's next draft depends on."""
        grammar, history = session.params.grammar, session.history
        if self._compiler is None or grammar is None:
            return history
        state = self._states.get(session)
        if state is None:
            state = self._states[session] = self._thread.submit(self._compiler.compile, grammar)
            state.add_done_callback(_log_failure)
        if not state.done() or state.exception() is not None or state.result().expensive:
            return history
        return replace(history, allowed=state.result().masks(session.output)[0])


def _log_failure(compiled: "Future[TokenMasks]") -> None:
    error = None if compiled.cancelled() else compiled.exception()
    if error is not None:
        _log.warning("grammar_unusable", error=str(error))

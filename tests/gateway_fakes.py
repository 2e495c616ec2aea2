"""Stand-ins for what the gateway works with: a store in memory, a tokenizer of bytes, a verifier with a script."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from gateway.store.orphans import Orphan
from gateway.store.redis_client import ServerFacts
from gateway.store.sessions import Commit, Committed, Lease, Opened, SessionState, SessionView, StoredRound, TurnView
from gateway.verifiers.verifier import Call, VerifiedRound, VerifierInfo
from specdec.errors import (
    DeadlineExceeded,
    Draining,
    Fenced,
    IdempotencyKeyReused,
    NoVerifier,
    SessionBusy,
    SessionDiverged,
    SessionHeld,
    SessionNotFound,
    SessionStoreDown,
    SpecdecError,
    TurnOver,
)
from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import FinishReason, Mode, Origin

_Item = TypeVar("_Item")

EOS = 256
CONTEXT = 256
TOKENIZER_HASH = "bytes"


class ByteTokenizer:
    """Every byte is a token; 256 is the end."""

    fingerprint = TOKENIZER_HASH

    async def encode(self, prompt: Prompt) -> tuple[int, ...]:
        match prompt:
            case TokenPrompt(tokens):
                return tokens
            case TextPrompt(text):
                return tuple(text.encode())
            case ChatPrompt(messages):
                return tuple("".join(f"{m.role}: {m.content}\n" for m in messages).encode())

    async def encode_after(self, prompt: Prompt, history: Sequence[int]) -> tuple[int, ...]:
        return await self.encode(prompt)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < EOS).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < EOS else b"<end>"


@dataclass
class MemorySession:
    """One session as the store has it."""

    tokens: list[int]
    base: int
    epoch: int = 0
    owner: str = ""
    finish: str = ""
    cancelled: bool = False
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it was cancelled in the way that its owner hears of at once."""
    turn: int = 1
    tenant: str = ""
    params: bytes = b""
    prompt: tuple[int, ...] = ()
    fingerprint: str = ""
    stored: list[StoredRound] = field(default_factory=list)
    requests: dict[str, tuple[int, str]] = field(default_factory=dict)


class MemorySessionStore:
    """A SessionStore without a server; `down` makes it fail, `journal` says what was done, in order."""

    def __init__(self) -> None:
        self.sessions: dict[str, MemorySession] = {}
        self.journal: list[str] = []
        self.down = False
        self.refused: list[str] = []
        """What was asked for while it was down."""
        self.orphaned: list[Orphan] = []
        """What is found next."""

    @property
    def only(self) -> MemorySession:
        (session,) = self.sessions.values()
        return session

    async def open(
        self,
        session_id: str,
        request_id: str,
        tokens: Sequence[int],
        params_blob: bytes,
        model_fingerprint: str,
        tenant: str,
        expect_turn: int | None = None,
        digest: str = "",
        create: bool = True,
    ) -> Opened:
        self._up("open")
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = MemorySession([], 0, turn=0, tenant=tenant, finish="stop")
        if request_id in session.requests:
            turn, seen = session.requests[request_id]
            if seen != digest:
                raise IdempotencyKeyReused("this idempotency key came before, with another request")
            return Opened(turn, session.base, repeated=True)
        if (session.owner and not session.finish) or expect_turn not in (None, session.turn):
            raise SessionBusy("another writer was first")
        session.turn += 1
        session.tokens += tokens
        session.prompt, session.base, session.params = tuple(session.tokens), len(session.tokens), params_blob
        session.finish, session.stored, session.fingerprint = "", [], model_fingerprint
        session.requests[request_id] = (session.turn, digest)
        return Opened(turn=session.turn, base=session.base)

    async def create(self, session_id: str, tenant: str, model_fingerprint: str, ttl: float | None = None) -> None:
        self._up("create")
        self.sessions[session_id] = MemorySession(
            [], 0, turn=0, tenant=tenant, finish="stop", fingerprint=model_fingerprint
        )

    async def delete(self, session_id: str, tenant: str) -> None:
        self._of(session_id, tenant)
        del self.sessions[session_id]

    async def named(self, tenant: str, limit: int, after: str = "") -> list[str]:
        return [name for name, session in self.sessions.items() if session.tenant == tenant][:limit]

    async def look(self, session_id: str, tenant: str, request_id: str = "") -> SessionView:
        session = self._of(session_id, tenant)
        state = SessionState.DONE if session.finish else SessionState.GENERATING
        seen = session.requests.get(request_id, (None, ""))[0]
        return SessionView(session.turn, state, len(session.tokens), session.fingerprint, 60.0, seen)

    async def read(self, session_id: str, tenant: str, turn: int, after: int | None = None) -> TurnView:
        session = self._of(session_id, tenant)
        if turn != session.turn:
            raise SessionNotFound("no such session", "session")
        state = SessionState.DONE if session.finish else SessionState.GENERATING
        behind, length = [], session.base
        for stored in session.stored:
            if after is None or length >= after:
                behind.append(stored)
            length += len(stored.tokens)
        left = 60.0 if session.owner else 0.0
        whole = after is None
        return TurnView(state, left, session.prompt if whole else (), session.params if whole else b"", tuple(behind))

    async def wait(self, session_id: str, turn: int, after: int, timeout: float) -> None:
        await asyncio.sleep(0.005)

    async def acquire(self, session_id: str, owner: str, turn: int | None = None) -> Lease:
        self._up("acquire")
        session = self.sessions[session_id]
        if session.finish:
            raise TurnOver("the turn is done")
        if session.owner not in ("", owner):
            raise SessionHeld("another gateway has the session", 60.0)
        session.epoch, session.owner = session.epoch + 1, owner
        return Lease(session.epoch, len(session.tokens))

    async def commit(self, commit: Commit) -> Committed:
        self._up("commit")
        session = self.sessions[commit.session_id]
        if commit.epoch != session.epoch:
            raise Fenced("another owner has the session")
        if commit.base != len(session.tokens) or session.finish:
            raise SessionDiverged("the round does not continue the log")
        session.tokens += commit.tokens
        session.stored.append(StoredRound(tuple(commit.tokens), commit.finish, commit.note))
        session.finish = commit.finish
        if commit.finish:
            session.owner = ""
        return Committed(len(session.tokens), session.cancelled)

    async def renew(self, session_id: str, epoch: int) -> bool:
        self._up("renew")
        return self.sessions[session_id].cancelled

    async def cancel(self, session_id: str, tenant: str, turn: int) -> bool:
        session = self._of(session_id, tenant)
        session.cancelled = True
        session.asked.set()
        return True

    async def cancelled(self, session_id: str, turn: int) -> None:
        await self.sessions[session_id].asked.wait()

    async def release(self, session_id: str, epoch: int) -> bool:
        self._up("release")
        self.sessions[session_id].owner = ""
        return True

    async def orphans(self, limit: int) -> list[Orphan]:
        await self.ping()
        orphans, self.orphaned = self.orphaned[:limit], self.orphaned[limit:]
        return orphans

    async def tokens(self, session_id: str) -> list[int]:
        return list(self.sessions[session_id].tokens)

    async def ping(self) -> None:
        if self.down:
            raise SessionStoreDown("the session store does not answer")

    async def server_facts(self) -> ServerFacts:
        return ServerFacts("memory", "1.0.0", "noeviction", True)

    async def close(self) -> None:
        return

    def _of(self, session_id: str, tenant: str) -> MemorySession:
        self._up("read")
        session = self.sessions.get(session_id)
        if session is None or session.tenant != tenant:
            raise SessionNotFound("no such session", "session")
        return session

    def _up(self, what: str) -> None:
        if self.down:
            self.refused.append(what)
            raise SessionStoreDown("the session store does not answer")
        self.journal.append(what)


@dataclass
class Script:
    """What a verifier says: `text`, then the end, in rounds of `gamma` + 1 tokens whose last is not drafted."""

    text: str = "Hello, world."
    gamma: int = 3
    fallback: str = ""
    """Why there are no drafts; empty when there are."""
    pause: float = 0.0
    """Seconds before each round."""


def output(script: Script) -> list[int]:
    """All the tokens a script comes to."""
    return [*script.text.encode(), EOS]


def rounds(script: Script, call: Call) -> list[VerifiedRound]:
    """The rounds of the rest of a generation."""
    committed = len(call.tokens) - call.prompt_len
    left = output(script)[committed : call.max_tokens]
    drafting = call.speculation.mode is not Mode.OFF and not script.fallback
    gamma = script.gamma if drafting else 0
    found = []
    for start in range(0, len(left), gamma + 1):
        tokens = tuple(left[start : start + gamma + 1])
        ends = start + len(tokens) == len(left)
        found.append(_round(script, call, start, tokens, gamma, ends))
    return found


def _round(script: Script, call: Call, start: int, tokens: tuple[int, ...], gamma: int, ends: bool) -> VerifiedRound:
    stopped = ends and tokens[-1] == EOS
    accepted = min(len(tokens), gamma) if len(tokens) <= gamma else gamma
    draft = (*tokens[:accepted], *([65] * (gamma - accepted)))
    last = (Origin.BONUS,) if gamma else (Origin.PLAIN,)
    origins = (Origin.ACCEPTED,) * accepted + last * (len(tokens) - accepted)
    return VerifiedRound(
        base_len=len(call.tokens) + start,
        tokens=tokens,
        origins=origins,
        draft=draft,
        accepted=accepted,
        finish=(FinishReason.STOP if stopped else FinishReason.LENGTH) if ends else None,
        fallback_reason=script.fallback if not gamma and call.speculation.mode is not Mode.OFF else "",
        logprobs=() if call.logprobs is None else tuple(logprobs(token, call.logprobs) for token in tokens),
    )


def logprobs(token: int, top: int) -> TokenLogprobs:
    """What a scripted verifier reports of a token: numbers that tell which one it was, and bytes that are no text."""
    return TokenLogprobs(-token / 16, tuple((128 + place, -0.5 * place) for place in range(top)))


def facts(**changes: object) -> VerifierInfo:
    """What a scripted verifier says of its model."""
    values: dict[str, object] = {
        "model": "bytes",
        "tokenizer_hash": TOKENIZER_HASH,
        "vocab_size": EOS + 1,
        "context_length": CONTEXT,
        "end_token_ids": (EOS,),
        "gamma_max": 8,
        "system_fingerprint": "fp_test",
    }
    return VerifierInfo(**(values | changes))  # type: ignore[arg-type]


class ScriptedVerifier:
    """A verifier in this process."""

    def __init__(self, address: str = "a:1", script: Script | None = None, info: VerifierInfo | None = None) -> None:
        self.address = address
        self.script = script or Script()
        self.facts = info or facts()
        self.calls: list[Call] = []
        self.cancelled = 0
        self.reachable = True
        self.draining = False
        self.slow = False
        self.failures: list[tuple[int, SpecdecError]] = []
        """For each call to come: after how many rounds it fails, and how."""

    async def info(self, timeout: float) -> VerifierInfo:
        if not self.reachable:
            raise NoVerifier(f"verifier {self.address} does not answer")
        if self.slow:
            raise DeadlineExceeded(f"verifier {self.address} does not answer in time")
        if self.draining:
            raise Draining("the verifier is shutting down")
        return self.facts

    async def generate(self, call: Call, timeout: float) -> AsyncGenerator[VerifiedRound]:
        self.calls.append(call)
        left, error = self.failures.pop(0) if self.failures else (-1, None)
        try:
            for verified in rounds(self.script, call):
                if left == 0 and error is not None:
                    raise error
                left -= 1
                await asyncio.sleep(self.script.pause)
                yield verified
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise

    async def close(self) -> None:
        return


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return when `condition()` holds; fail when it does not come true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in code that knows no events of ours
            await asyncio.sleep(0.005)


async def drained(items: AsyncIterable[_Item], seen: Callable[[_Item], object]) -> None:
    """Call `seen` with every item."""
    async for item in items:
        seen(item)

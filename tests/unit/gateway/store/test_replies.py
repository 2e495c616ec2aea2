"""Every operation ends with a value or a SpecdecError, for any reply of the store.

The replies of COMMIT and READ are tested with every status word and with fields that scripts do not send. Bytes that no
script sent do not count as a reply.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.checked_scripts import arguments_of, digest_of, reply_of
from gateway.store.redis_replies import (
    lapsed_turn,
    lease,
    opened,
    outcomes,
    renewals,
    session_view,
    turn_view,
    understood,
)
from gateway.store.redis_scripts import TRIES
from gateway.store.redis_sessions import RedisSessionStore, StorePolicy
from gateway.store.values import RoundCommit, TurnView
from specdec.errors import Fenced, SessionDiverged, SessionExpired, SessionNotFound, SessionStoreDown, SpecdecError
from tests.contracts.session_store import commit
from tests.support.own_pipeline import OwnPipeline

WORDS = [
    *(b"OK", b"DUP", b"FENCED", b"GAP", b"MISMATCH", b"CORRUPT", b"SPOILED", b"NOSESSION", b"EXPIRED", b"NONE"),
    *(b"OVER", b"HELD", b"BUSY", b"CONFLICT", b"REUSED", b"MODEL", b"TOOLONG", b"DENIED", b"NOOP", b"LIVE", b"GARBLED"),
]
ATOMS = st.none() | st.integers() | st.binary(max_size=9) | st.sampled_from([b"", b"1", b"7", b"GEN", b"DONE", b"\xff"])
FIELDS = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=4), max_leaves=12)
ANSWERS = st.lists(
    st.builds(
        lambda word, rest: word + b" " + rest, st.sampled_from(WORDS), st.sampled_from([b"", b"1", b"7", b"\xff"])
    ),
    max_size=3,
)
OF_A_PASS = st.builds(lambda answers: [b"OK", b",".join(answers)], ANSWERS)
REPLIES = OF_A_PASS | st.builds(lambda word, rest: [word, *rest], st.sampled_from(WORDS), st.lists(FIELDS, max_size=6))
ENTRIES = st.lists(
    st.tuples(
        st.just(b"1-2"),
        st.lists(
            st.sampled_from([b"t", b"f", b"r", b"p", b"\1\0\0\0", b"\1\0\0", b"\xff\xff\xff\xff", b"stop"]), max_size=8
        ),
    ).map(list),
    max_size=3,
)
READS = st.builds(
    lambda state, left, prompt, entries: [b"OK", state, left, prompt, entries],
    *(st.sampled_from([b"GEN", b"DONE", b"\xff"]), ATOMS, ATOMS, ENTRIES),
)
COMMIT = RoundCommit("0" * 32, epoch=5, base=3, tokens=[1, 2])

PARSERS: list[Callable[[Any], object]] = [
    session_view,
    turn_view,
    lease,
    lambda reply: opened(reply, 9),
    lambda reply: outcomes(reply, [COMMIT] * 2),
    lambda reply: renewals(reply, [("s", 5)]),
    lambda reply: lapsed_turn(reply, "s"),
]


class Answering(OwnPipeline):
    """A Redis client with one answer to every script, with that call's checksum unless it is `bare`."""

    def __init__(self, reply: Any, bare: bool = False) -> None:
        self.reply = reply
        self.bare = bare
        self.calls = 0
        self.dropped = 0
        self.connection_pool = self
        self._sent: list[tuple[Any, ...]] = []

    def execute_command(self, *command: Any) -> None:
        self._sent.append(command)

    async def execute(self, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        sent, self._sent = self._sent, []
        return [await self.evalsha(*command) for _, *command in sent]

    async def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        self.calls += 1
        sent = keys_and_args[numkeys:]
        return self.reply if self.bare else [digest_of(sent[-1], self.reply), self.reply]

    async def disconnect(self, inuse_connections: bool = True) -> None:
        self.dropped += 1


def store(answers: Answering) -> RedisSessionStore:
    client: Any = answers
    return RedisSessionStore(client, client, StorePolicy(patience=0.0))


async def ended(operation: Awaitable[object]) -> object:
    """Return the value or the SpecdecError; any other error fails the test."""
    try:
        return await operation
    except SpecdecError as error:
        return error


@given(REPLIES | READS)
def test_every_reply_means_something_or_the_store_is_down(reply: list[Any]) -> None:
    for parser in PARSERS:
        with suppress(SpecdecError):
            understood(parser, reply)


@given(REPLIES)
async def test_a_commit_ends_whatever_the_reply_is(reply: list[Any]) -> None:
    answers = Answering(reply)
    found = await ended(commit(store(answers), COMMIT))
    assert isinstance(found, bool | SpecdecError)
    assert answers.calls == 1


@given(REPLIES | READS)
async def test_a_read_ends_whatever_the_reply_is(reply: list[Any]) -> None:
    found = await ended(store(Answering(reply)).read("0" * 32, "t", 1))
    assert isinstance(found, TurnView | SessionNotFound | SessionExpired | SessionStoreDown)


@pytest.mark.parametrize(
    ("reply", "means"),
    [
        ([b"OK", b"FENCED"], Fenced),
        ([b"OK", b"NOSESSION"], SessionNotFound),
        ([b"OK", b"GAP 2"], SessionDiverged),
        ([b"OK", b"MISMATCH 9"], SessionDiverged),
        ([b"OK", b"CORRUPT 9"], SessionDiverged),
        ([b"OK", b"SPOILED"], SessionDiverged),
        ([b"GARBLED"], SessionStoreDown),
        ([b"OK"], SessionStoreDown),
        ([b"OK", b"OK"], SessionStoreDown),
        ([b"OK", b"OK ,OK "], SessionStoreDown),
        ([b"OK", b"OK \xff"], SessionStoreDown),
        ([b"OK", b"GAP x"], SessionStoreDown),
        ([b"???"], SessionStoreDown),
    ],
)
async def test_every_reply_of_commit_has_its_error(reply: list[Any], means: type[SpecdecError]) -> None:
    assert type(await ended(commit(store(Answering(reply)), COMMIT))) is means


@given(FIELDS)
async def test_an_answer_without_its_checksum_is_refused_with_its_connection(answer: Any) -> None:
    answers = Answering(answer, bare=True)
    assert isinstance(await ended(commit(store(answers), COMMIT)), SessionStoreDown)
    assert (answers.calls, answers.dropped) == (TRIES, TRIES)


def test_the_reply_to_another_equal_call_is_not_taken() -> None:
    first, second = (arguments_of(["k"], ["a", 1]) for _ in range(2))
    reply = [b"OK", b"1"]
    answer = [digest_of(first[-1], reply), reply]
    assert reply_of(answer, first) == reply
    assert reply_of(answer, second) is None


@given(st.data())
def test_a_changed_byte_of_a_reply_is_found(data: st.DataObject) -> None:
    sent = arguments_of(["k"], ["a"])
    reply = [b"OK", b"GEN", b"250", b"\1\0\0\0", [[b"1-2", [b"p", b"{}"]]]]
    spoiled = bytearray(reply[3])
    spoiled[data.draw(st.integers(0, 3))] ^= data.draw(st.integers(1, 255))
    assert reply_of([digest_of(sent[-1], reply), [*reply[:3], bytes(spoiled), reply[4]]], sent) is None

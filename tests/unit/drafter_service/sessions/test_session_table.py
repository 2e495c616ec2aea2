"""The table of sessions: ownership of names, admission, and the KV that outlives a message."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from drafter_service.config import DrafterSettings
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import ScheduledSession
from drafter_service.sessions.refusal import SessionRefused
from drafter_service.sessions.session_table import SessionTable
from drafter_service.sessions.stream import MalformedMessage, Message
from specdec.sampling.params import SamplingParams
from specdec.wire.session import Close, NackReason
from tests.support.drafter_fakes import OPEN, VOCAB, ListStream, PrefixModel, commit, continued


class Table:
    """A table, its model, and one stream."""

    def __init__(self, max_sessions: int = 4, tokens: int = 1000, per_verifier: int = 4) -> None:
        self.model = PrefixModel(tokens)
        self.drafter = ModelDrafter("tiny", self.model, support=8)
        self.now = 100.0
        settings = DrafterSettings(
            model={"path": "any"}, max_sessions=max_sessions, max_sessions_per_verifier=per_verifier, outcomes=0
        )
        self.sessions = SessionTable(self.drafter, settings, lambda: self.now)
        self.stream = ListStream()

    def take(self, message: Message, stream: ListStream | None = None) -> DraftSession | None:
        return self.sessions.take(stream or self.stream, message)

    def opened(self, message: Message) -> DraftSession:
        session = self.take(message)
        assert session is not None
        return session

    def draft(self, session: DraftSession, count: int) -> None:
        """Run the model on a session, so that it has KV."""
        for _ in range(count):
            pending = len(session) - self.drafter.sequences.length(session.key)
            (outcome,) = self.drafter.step([ScheduledSession(session, pending)])
            session.extend(getattr(outcome, "token"))  # noqa: B009 - a failed one has none, and fails here


def _reason(act: Callable[[], object]) -> NackReason:
    with pytest.raises(SessionRefused) as refused:
        act()
    return refused.value.reason


def test_a_closed_session_gives_its_room_back() -> None:
    table = Table()
    before = table.model.free
    table.take(OPEN)
    assert table.model.free == before - len(OPEN.tokens)
    table.take(Close("s", 1))
    assert (len(table.sessions), table.model.free) == (0, before)


def test_closing_twice_or_in_an_older_epoch_does_nothing() -> None:
    table = Table()
    table.take(replace(OPEN, epoch=2))
    table.take(Close("s", 1))
    assert len(table.sessions) == 1
    table.take(Close("s", 2))
    table.take(Close("s", 2))
    assert len(table.sessions) == 0


def test_a_stream_that_ends_gives_all_its_room_back_and_no_other() -> None:
    table, other = Table(), ListStream(2)
    table.take(OPEN)
    table.take(replace(OPEN, session_id="t"))
    table.take(OPEN, other)
    table.sessions.remove_stream(table.stream)
    table.sessions.remove_stream(table.stream)
    assert [(stream.number, session.session_id) for stream, session in table.sessions] == [(2, "s")]
    assert list(table.model.kv) == ["2/s"]


def test_two_streams_may_use_the_same_name() -> None:
    table, other = Table(), ListStream(2)
    table.take(OPEN)
    table.take(continued(OPEN, 4), other)
    assert [len(session) for _, session in table.sessions] == [3, 4]


def test_a_commit_to_a_session_that_is_not_open_is_unknown() -> None:
    table = Table()
    assert _reason(lambda: table.take(commit(3, 4))) is NackReason.UNKNOWN
    table.take(OPEN)
    assert _reason(lambda: table.take(commit(3, 4), ListStream(2))) is NackReason.UNKNOWN


def test_a_gap_forgets_the_session() -> None:
    table = Table()
    table.take(OPEN)
    assert _reason(lambda: table.take(commit(9, 4))) is NackReason.STALE
    assert _reason(lambda: table.take(commit(3, 4))) is NackReason.UNKNOWN
    assert not table.model.kv


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (replace(OPEN, epoch=4), NackReason.STALE),
        (commit(3, 4, epoch=4), NackReason.STALE),
        (MalformedMessage("s", 4, "what"), NackReason.MALFORMED),
    ],
)
def test_a_message_of_an_older_owner_does_not_touch_the_session(message: Message, reason: NackReason) -> None:
    table = Table()
    table.take(replace(OPEN, epoch=5))
    assert _reason(lambda: table.take(message)) is reason
    assert table.take(commit(3, 4, epoch=5)) is not None


def test_a_malformed_message_forgets_its_session_only() -> None:
    table = Table()
    table.take(OPEN)
    table.take(replace(OPEN, session_id="t"))
    assert _reason(lambda: table.take(MalformedMessage("s", 1, "what"))) is NackReason.MALFORMED
    assert [session.session_id for _, session in table.sessions] == ["t"]


@pytest.mark.parametrize(
    "message",
    [
        replace(OPEN, tokens=(1, VOCAB)),
        replace(OPEN, params=SamplingParams(logit_bias={VOCAB: 1.0})),
        replace(OPEN, params=SamplingParams(end_token_ids=(VOCAB,))),
        commit(3, VOCAB),
        commit(3, -1),
    ],
)
def test_an_id_outside_the_vocabulary_is_malformed(message: Message) -> None:
    table = Table()
    table.take(OPEN)
    assert _reason(lambda: table.take(message)) is NackReason.MALFORMED
    assert len(table.sessions) == 0


def test_more_sessions_than_allowed_are_refused() -> None:
    table = Table(max_sessions=1)
    table.take(OPEN)
    assert _reason(lambda: table.take(replace(OPEN, session_id="t"))) is NackReason.OVERLOADED
    table.take(replace(OPEN, epoch=2))
    assert [session.epoch for _, session in table.sessions] == [2]


def test_one_verifier_leaves_room_for_others_with_any_number_of_streams() -> None:
    table = Table(max_sessions=3, per_verifier=2)
    greedy = [ListStream(number, "greedy") for number in (1, 2, 3)]
    for stream in greedy[:2]:
        table.take(OPEN, stream)
    assert _reason(lambda: table.take(OPEN, greedy[2])) is NackReason.OVERLOADED
    assert table.take(replace(OPEN, epoch=2), greedy[0]) is not None
    assert table.take(OPEN, ListStream(4, "modest")) is not None
    table.sessions.remove_stream(greedy[1])
    assert table.take(OPEN, greedy[2]) is not None


def test_a_verifier_at_its_limit_loses_its_own_idle_session() -> None:
    table = Table(per_verifier=1)
    broken, again, other = ListStream(1, "v"), ListStream(2, "v"), ListStream(3, "w")
    idle = replace(OPEN, gamma=0)
    table.take(idle, other)
    table.take(idle, broken)
    table.now += 3.0
    assert table.take(idle, again) is not None
    assert [(stream.number, session.session_id) for stream, session in table.sessions.take_evicted()] == [(1, "s")]
    assert sorted(stream.number for stream, _ in table.sessions) == [2, 3]


def test_a_verifier_with_every_session_gives_back_until_shares_are_equal() -> None:
    table = Table(max_sessions=6, per_verifier=6)
    flood, modest = ListStream(1, "flood"), ListStream(2, "modest")
    for number in range(6):
        table.now += 1.0
        table.take(replace(OPEN, session_id=f"{number}"), flood)
    for number in range(3):
        table.take(replace(OPEN, session_id=f"{number}"), modest)
    evicted = [(stream.number, session.session_id) for stream, session in table.sessions.take_evicted()]
    assert evicted == [(1, "0"), (1, "1"), (1, "2")]
    for stream in (flood, modest):
        assert _reason(lambda: table.take(replace(OPEN, session_id="9"), stream)) is NackReason.OVERLOADED  # noqa: B023
    assert sorted(stream.number for stream, _ in table.sessions) == [1, 1, 1, 2, 2, 2]


def test_a_verifier_with_all_memory_gives_back_to_one_that_holds_less() -> None:
    table = Table(tokens=12)
    flood, modest = ListStream(1, "flood"), ListStream(2, "modest")
    for name in ("a", "b", "c", "d"):
        table.take(replace(OPEN, session_id=name, max_len=12), flood)
    table.take(replace(OPEN, max_len=12), modest)
    assert [session.session_id for _, session in table.sessions.take_evicted()] == ["a"]
    table.take(replace(OPEN, session_id="t", max_len=12), modest)
    assert _reason(lambda: table.take(replace(OPEN, session_id="u", max_len=12), modest)) is NackReason.OVERLOADED
    assert sorted(table.model.kv) == ["1/c", "1/d", "2/s", "2/t"]


def test_a_growing_session_takes_memory_of_the_verifier_that_holds_most() -> None:
    table = Table(tokens=12)
    flood = ListStream(2, "flood")
    growing = table.opened(replace(OPEN, max_len=12))
    for name in ("a", "b", "c"):
        table.take(replace(OPEN, session_id=name, max_len=12), flood)
    assert [[each.session_id for each in grow(table, growing)] for _ in range(2)] == [[], ["a"]]


def test_a_session_without_room_is_refused_and_leaves_nothing() -> None:
    table = Table(tokens=5)
    table.take(replace(OPEN, max_len=5))
    assert _reason(lambda: table.take(replace(OPEN, session_id="t", max_len=5))) is NackReason.OVERLOADED
    assert _reason(lambda: table.take(replace(OPEN, session_id="u", max_len=6))) is NackReason.OVERLOADED
    assert len(table.sessions) == 1
    table.take(replace(OPEN, session_id="t", tokens=(1, 2), max_len=5))
    assert len(table.sessions) == 2


def grow(table: Table, session: DraftSession) -> list[DraftSession]:
    """Let one session draft, and return the evicted sessions."""
    table.now += 1.0
    for scheduled in table.sessions.reserve(
        [ScheduledSession(session, len(session) - table.drafter.sequences.length(session.key))]
    ):
        (outcome,) = table.drafter.step([scheduled])
        session.extend(getattr(outcome, "token"))  # noqa: B009 - a failed one has none, and fails here
    return [dropped for _, dropped in table.sessions.take_evicted()]


def test_a_growing_session_takes_the_room_of_the_least_recently_used() -> None:
    table = Table(tokens=12)
    waiting = table.opened(replace(OPEN, session_id="waiting", max_len=12))
    idle = replace(OPEN, gamma=0, max_len=12)
    cold, warm, growing = (table.opened(replace(idle, session_id=name)) for name in ("cold", "warm", "grows"))
    table.now += 1.0
    table.take(commit(3, gamma=0, session_id="warm"))
    assert [grow(table, growing) for _ in range(8)] == [[], [cold], [], [], [warm], [], [], [growing]]
    assert [session for _, session in table.sessions] == [waiting]
    assert list(table.model.kv) == ["1/waiting"]


def test_an_opened_session_takes_the_room_of_a_long_silent_one() -> None:
    table = Table(tokens=5)
    table.take(replace(OPEN, gamma=0, max_len=5))
    opening = replace(OPEN, session_id="t", max_len=5)
    assert _reason(lambda: table.take(opening)) is NackReason.OVERLOADED
    table.now += 2.0
    table.take(opening)
    assert [session.session_id for _, session in table.sessions.take_evicted()] == ["s"]
    assert list(table.model.kv) == ["1/t"]


def test_a_sequence_at_its_end_takes_no_room() -> None:
    table = Table()
    session = table.opened(replace(OPEN, max_len=3))
    assert not table.model.kv
    assert session.take_end()
    table.take(commit(3, 4))
    table.take(Close("s", 1))
    assert len(table.sessions) == 0


def test_a_diverging_verdict_voids_the_kv_after_it() -> None:
    table = Table()
    session = table.opened(OPEN)
    table.draft(session, 4)
    drafts = session.tokens_from(3)
    assert table.model.kv["1/s"] == [1, 2, 3, *drafts[:3]]
    table.take(commit(3, drafts[0], (drafts[1] + 1) % VOCAB))
    assert table.model.kv["1/s"] == [1, 2, 3, drafts[0]]


def test_a_verdict_beyond_the_kv_voids_none_of_it() -> None:
    table = Table()
    session = table.opened(OPEN)
    table.draft(session, 2)
    drafts = session.tokens_from(3)
    table.take(commit(3, *drafts, 1, 2))
    assert table.model.kv["1/s"] == [1, 2, 3, drafts[0]]


def test_a_session_opened_again_keeps_the_kv_of_what_is_the_same() -> None:
    table = Table()
    session = table.opened(OPEN)
    table.draft(session, 4)
    drafts = session.tokens_from(3)
    table.take(replace(continued(OPEN, drafts[0], (drafts[1] + 1) % VOCAB), epoch=2))
    assert table.model.kv["1/s"] == [1, 2, 3, drafts[0]]


def test_a_session_opened_again_where_it_was_still_has_a_token_to_compute() -> None:
    table = Table()
    table.draft(table.opened(OPEN), 2)
    table.draft(table.opened(OPEN), 1)
    assert table.model.kv["1/s"] == [1, 2, 3]


def test_a_session_opened_again_for_more_tokens_gets_more_room() -> None:
    table = Table()
    table.draft(table.opened(OPEN), 2)
    table.take(replace(OPEN, max_len=40))
    assert table.model.limits == {"1/s": 40}
    assert table.model.kv == {"1/s": []}

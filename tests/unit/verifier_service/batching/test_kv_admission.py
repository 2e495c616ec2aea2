"""Who has KV when there is not enough for all."""

from tests.unit.verifier_service.fakes import TableEngine
from verifier_service.batching.batch_plan import KvRequest
from verifier_service.batching.kv_admission import IDLE_SECONDS, KvAdmission


class Hall:
    """Seats over a table engine of ten tokens."""

    def __init__(self) -> None:
        self.now = 100.0
        self.engine = TableEngine(room=10)
        self.seats = KvAdmission(self.engine, lambda: self.now)

    def enter(self, session: str, tokens: int, rank: float = 0.0) -> bool:
        return self.seats.enter(KvRequest(session, 10, rank), range(tokens))


def test_a_session_that_grows_takes_from_the_last_in_rank() -> None:
    hall = Hall()
    assert all(hall.enter(name, 3, rank) for name, rank in (("b", 2.0), ("c", 3.0), ("a", 1.0)))
    assert hall.seats.grow("a", 5)
    assert set(hall.engine.held) == {"a", "b"}
    assert hall.seats.grow("a", 10)
    assert set(hall.engine.held) == {"a"}
    assert hall.seats.preempted == 2


def test_the_last_in_rank_takes_from_nobody_and_gives_up_itself() -> None:
    hall = Hall()
    assert all(hall.enter(name, 5, rank) for name, rank in (("a", 1.0), ("b", 2.0)))
    assert not hall.seats.grow("b", 6)
    assert "b" not in hall.seats
    assert len(hall.seats) == 1
    assert set(hall.engine.held) == {"a"}


def test_who_comes_in_takes_only_from_those_that_ask_for_nothing() -> None:
    hall = Hall()
    assert hall.enter("idle", 5, rank=1.0)
    assert hall.enter("busy", 5, rank=9.0)
    hall.now += IDLE_SECONDS
    hall.seats.use("busy")
    assert hall.enter("new", 5, rank=5.0)
    assert set(hall.engine.held) == {"busy", "new"}
    assert not hall.enter("idle", 5, rank=1.0)


def test_a_session_leaves_once_whether_it_has_kv_or_not() -> None:
    hall = Hall()
    hall.enter("a", 5)
    hall.seats.leave("a")
    hall.seats.leave("a")
    hall.seats.use("a")
    assert hall.engine.held == {}
    assert hall.enter("b", 10)

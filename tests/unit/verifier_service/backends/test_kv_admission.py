"""Which sequences hold KV when there is not enough for all."""

from tests.unit.verifier_service.verifier_fakes import TableEngine, make_row
from verifier_service.backends.model_thread import IDLE_SECONDS, KvAdmission


class Memory:
    """Admission to a table engine of ten tokens."""

    def __init__(self) -> None:
        self.now = 100.0
        self.engine = TableEngine(room=10)
        self.admission = KvAdmission(self.engine, lambda: self.now)

    def admit(self, kv_name: str, tokens: int, rank: float = 0.0) -> bool:
        return self.admission.admit(make_row(kv_name, range(tokens), 0, limit=10, rank=rank))


def test_a_session_that_grows_takes_from_the_last_in_rank() -> None:
    memory = Memory()
    assert all(memory.admit(name, 3, rank) for name, rank in (("b", 2.0), ("c", 3.0), ("a", 1.0)))
    assert memory.admission.reserve("a", 5)
    assert set(memory.engine.held) == {"a", "b"}
    assert memory.admission.reserve("a", 10)
    assert set(memory.engine.held) == {"a"}
    assert memory.admission.preempted == 2


def test_the_last_in_rank_takes_from_nobody_and_gives_up_itself() -> None:
    memory = Memory()
    assert all(memory.admit(name, 5, rank) for name, rank in (("a", 1.0), ("b", 2.0)))
    assert not memory.admission.reserve("b", 6)
    assert "b" not in memory.admission
    assert len(memory.admission) == 1
    assert set(memory.engine.held) == {"a"}


def test_a_sequence_that_comes_in_takes_only_from_those_that_are_idle() -> None:
    memory = Memory()
    assert memory.admit("idle", 5, rank=1.0)
    assert memory.admit("busy", 5, rank=9.0)
    memory.now += IDLE_SECONDS
    memory.admission.touch("busy")
    assert memory.admit("new", 5, rank=5.0)
    assert set(memory.engine.held) == {"busy", "new"}
    assert not memory.admit("idle", 5, rank=1.0)


def test_a_session_leaves_once_whether_it_has_kv_or_not() -> None:
    memory = Memory()
    memory.admit("a", 5)
    memory.admission.release("a")
    memory.admission.release("a")
    memory.admission.touch("a")
    assert memory.engine.held == {}
    assert memory.admit("b", 10)

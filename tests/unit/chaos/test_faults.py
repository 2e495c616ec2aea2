"""The faults of a run are a function of its seed, and even a short run kills every role."""

from tests.chaos.faults import Kind, schedule


def test_the_same_seed_gives_the_same_faults() -> None:
    assert list(schedule(7, 100, 2)) == list(schedule(7, 100, 2))
    assert list(schedule(7, 100, 2)) != list(schedule(8, 100, 2))


def test_every_role_is_killed_before_anything_else_is_done() -> None:
    first = list(schedule(3, 100, 2))[:4]
    assert {fault.role for fault in first} == {"gateway", "verifier", "drafter", "redis"}
    assert {fault.kind for fault in first} == {Kind.KILL}


def test_faults_come_in_order_and_in_time() -> None:
    times = [fault.at for fault in schedule(3, 50, 2)]
    assert times == sorted(times)
    assert all(0 < at < 50 for at in times)


def test_only_what_was_asked_for_is_done() -> None:
    done = list(schedule(3, 50, 2, kinds=[Kind.CUT], roles=["redis"]))
    assert {(fault.kind, fault.role) for fault in done} == {(Kind.CUT, "redis")}

"""Assignment of keys to owners."""

from hypothesis import given
from hypothesis import strategies as st

from specdec.serving.rendezvous import ranking

KEYS = [f"session-{n}" for n in range(300)]
MEMBERS = st.sets(st.text(min_size=1, max_size=8), min_size=2, max_size=8)


@given(MEMBERS, st.data())
def test_only_the_keys_of_a_member_that_leaves_move(members: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(members)))
    for key in KEYS[:20]:
        before, after = ranking(key, members), ranking(key, members - {gone})
        assert after == [member for member in before if member != gone]


def test_every_member_gets_its_share() -> None:
    firsts = [ranking(key, "abcd")[0] for key in KEYS]
    assert all(firsts.count(member) > 30 for member in "abcd")


def test_the_order_of_the_members_does_not_matter() -> None:
    assert ranking("key", ["a", "b", "c"]) == ranking("key", ["c", "a", "b"])

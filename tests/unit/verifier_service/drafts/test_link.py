"""A link has one state, and operators can see the state and its reason."""

from prometheus_client import CollectorRegistry

from specdec.rules.speculation import Mode
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, DraftEnd, Nack, NackReason, Open
from tests.unit.verifier_service.verifier_fakes import GREEDY, chunk_after, make_link
from verifier_service.drafts.link import DrafterLink, LinkState


class Ear:
    """Records the messages it receives."""

    epoch = 1

    def __init__(self) -> None:
        self.heard: list[object] = []

    def drafted(self, message: DraftTokens) -> None:
        self.heard.append(message.draft.tokens)

    def ended(self, end: DraftEnd) -> None:
        self.heard.append(end.base_len)

    def refused(self, reason: NackReason) -> None:
        self.heard.append(reason)

    def lost(self) -> None:
        self.heard.append("lost")


def opened(link: DrafterLink, session: str = "s", epoch: int = 1) -> Ear:
    ear = Ear()
    ear.epoch = epoch
    link.open(Open(session, epoch, (1,), 1, GREEDY, Mode.REJECTION, 2, 9), ear)
    return ear


def test_the_state_is_told_with_its_reason_and_counted() -> None:
    registry = CollectorRegistry()
    link = make_link(registry)
    seen = []
    for change in (
        lambda: None,
        lambda: link.connected("small", 0.1),
        lambda: link.refused("no"),
        lambda: link.lost("x"),
    ):
        change()
        up = {
            state.value: registry.get_sample_value("specdec_drafter_up", {"address": "d:1", "state": state.value})
            for state in LinkState
        }
        assert sorted(value or 0.0 for value in up.values()) == [0.0, 0.0, 0.0, 1.0]
        assert up[link.state.value] == 1.0
        seen.append(link.drafter_state.state)
    assert seen == ["connecting", "ready", "refused: no", "connecting"]
    assert link.drafter_state.model == "small"


def test_each_listener_hears_of_its_own_session_and_epoch() -> None:
    link = make_link()
    link.connected("small", 0.1)
    ear, other = opened(link), opened(link, "other")
    link.drafted(chunk_after((1,), 5))
    link.ended(DraftEnd("s", 1, 9, 0))
    link.ended(DraftEnd("s", 2, 10, 0))
    link.ended(DraftEnd("nobody", 1, 10, 0))
    link.nacked(Nack("s", 2, NackReason.STALE, ""))
    link.malformed("s", 2, "")
    assert (ear.heard, other.heard) == ([(5,), 9], [])


def test_a_refused_session_hears_no_more_and_the_others_do() -> None:
    link = make_link()
    link.connected("small", 0.1)
    ear, other = opened(link), opened(link, "other")
    link.malformed("s", 1, "nonsense")
    link.drafted(chunk_after((1,), 5))
    link.ended(DraftEnd("other", 1, 3, 0))
    assert (ear.heard, other.heard) == ([NackReason.MALFORMED], [3])


def test_a_lost_link_tells_everybody_once() -> None:
    link = make_link()
    link.connected("small", 0.1)
    ears = [opened(link, name) for name in "abc"]
    link.lost("gone")
    link.lost("still gone")
    assert [ear.heard for ear in ears] == [["lost"]] * 3


def test_a_close_of_an_older_epoch_does_not_end_a_newer_session() -> None:
    link = make_link()
    link.connected("small", 0.1)
    ear = opened(link, epoch=2)
    link.close(Close("s", 1))
    link.ended(DraftEnd("s", 2, 5, 0))
    assert ear.heard == [5]

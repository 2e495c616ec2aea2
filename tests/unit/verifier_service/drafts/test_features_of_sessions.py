"""A session whose drafter reads features opens there when it has some, and sends the new ones with each verdict."""

from specdec.wire.features import Features
from specdec.wire.generation import Fallback
from specdec.wire.session import Commit
from tests.unit.verifier_service.drafts.drafts_scene import PROMPT, Scene
from tests.unit.verifier_service.verifier_fakes import chunk_after
from verifier_service.backends.batch_plan import Gathers
from verifier_service.drafts.drafts import Proposal


def features(start: int, end: int) -> Features:
    """Return features of one byte for each token."""
    return Features(start, end - start, bytes(range(start, end)))


async def opened() -> Scene:
    """Return a scene after the first verdict, which has opened the session at one of two drafters."""
    scene = Scene(links=2, features=True)
    scene.drafts.begin(2)
    assert scene.drafts.reads_states
    assert await scene.propose() == Proposal(fallback=Fallback.FIRST_ROUND)
    scene.drafts.read(features(0, 3))
    scene.drafts.commit((4,), 0, 2)
    await scene.waiting()
    return scene


async def test_the_first_round_has_no_draft_and_its_features_open_the_session() -> None:
    scene = await opened()
    link = scene.drafts._link
    assert link is not None
    (message,) = (await scene.sent(link)).opens
    assert message.tokens == (*PROMPT, 4)
    assert message.features == features(0, 3)
    link.drafted(chunk_after((*PROMPT, 4), 5, 6))
    assert (await scene.propose()).draft.tokens == (5, 6)
    scene.drafts.read(features(3, 6))
    scene.drafts.commit((5, 6, 7), 2, 2)
    assert (await scene.sent(link)).commits == (Commit("s", 1, 4, (5, 6, 7), 2, features(3, 6)),)


async def test_another_drafter_gets_the_features_again() -> None:
    scene = await opened()
    lost = scene.drafts._link
    assert lost is not None
    await scene.sent(lost)
    scene.drafts.read(features(3, 4))
    scene.drafts.commit((5,), 0, 2)
    lost.lost("killed")
    scene.drafts.read(features(4, 5))
    scene.drafts.commit((6,), 0, 2)
    await scene.waiting()
    other = next(link for link in scene.links if link is not lost)
    (message,) = (await scene.sent(other)).opens
    assert (message.tokens, message.features) == ((*PROMPT, 4, 5, 6), features(0, 5))


async def test_features_of_plain_rounds_follow_with_the_next_draft() -> None:
    scene = await opened()
    link = scene.drafts._link
    assert link is not None
    await scene.sent(link)
    for token, end in ((5, 4), (6, 5)):
        scene.drafts.read(features(end - 1, end))
        scene.drafts.commit((token,), 0, 0)
    scene.drafts.read(features(5, 6))
    scene.drafts.commit((7,), 0, 3)
    assert (await scene.sent(link)).commits == (Commit("s", 1, 4, (5, 6, 7), 3, features(3, 6)),)


async def test_a_drafter_that_reads_no_features_gets_none() -> None:
    scene = Scene(features=True)
    scene.link.reads_features = False
    scene.drafts.begin(2)
    (message,) = (await scene.sent()).opens
    assert message.features is None
    scene.drafts.read(features(0, 3))
    scene.drafts.commit((4,), 0, 2)
    assert (await scene.sent()).commits == (Commit("s", 1, 3, (4,), 2),)


async def test_a_session_without_features_is_not_opened_where_they_are_read() -> None:
    scene = Scene(features=True)
    scene.drafts._reads_states = False
    scene.drafts.begin(2)
    assert await scene.propose() == Proposal(fallback=Fallback.NO_MATCH)
    scene.link.outbox.ping(1)
    assert (await scene.sent()).opens == ()


async def test_while_features_are_missing_nothing_is_sent_and_no_pass_waits() -> None:
    scene = Scene(features=True, worth=60.0)
    scene.drafts.read(features(0, 3))
    scene.drafts.commit((4,), 0, 2)
    scene.drafts.request(2, lambda: None)
    await scene.sent()
    scene.link.drafted(chunk_after((*PROMPT, 4), 9))
    assert scene.drafts.gathers is Gathers.ALWAYS
    scene.drafts.read(features(3, 4))
    scene.drafts.commit((5,), 1, 0)
    for token in (6, 7):  # rounds that ran ahead
        scene.drafts.commit((token,), 0, 0)
    scene.drafts.commit((8,), 0, 2)
    scene.drafts.request(2, lambda: None)
    assert scene.drafts.gathers is Gathers.NOT
    scene.drafts.stop_waiting()
    assert (proposal := scene.drafts.proposal()) is not None
    assert proposal.fallback is Fallback.FIRST_ROUND
    scene.drafts.read(features(4, 8))
    scene.drafts.commit((9,), 0, 2)
    assert (await scene.sent()).commits == (Commit("s", 1, 4, (5, 6, 7, 8, 9), 2, features(3, 8)),)


async def test_a_session_opens_with_the_features_of_all_rounds() -> None:
    scene = Scene(features=True)
    scene.drafts.read(features(0, 3))
    for token in (4, 5):  # the second round ran ahead
        scene.drafts.commit((token,), 0, 0)
    scene.drafts.begin(2)
    assert scene.drafts._link is None
    scene.drafts.read(features(3, 5))
    scene.drafts.commit((6,), 0, 2)
    scene.drafts.begin(2)
    assert (await scene.sent()).opens[0].features == features(0, 5)

"""One session and its drafters: messages, fallback, moves, fences."""

import pytest
from structlog.contextvars import bound_contextvars

from specdec.rules.draft import Draft
from specdec.rules.speculation import Mode
from specdec.wire.draft import DraftTokens
from specdec.wire.generation import Fallback
from specdec.wire.session import Close, Commit, Nack, NackReason, Open
from tests.unit.verifier_service.drafts.drafts_scene import PATIENT, PROMPT, SETTINGS, Scene
from tests.unit.verifier_service.verifier_fakes import chunk_after, make_call
from verifier_service.config import DraftingSettings
from verifier_service.drafts.drafts import Proposal


async def test_a_session_opens_once_with_everything_the_drafter_needs() -> None:
    scene = Scene()
    scene.drafts.begin(4)
    scene.drafts.begin(4)
    (opened,) = (await scene.sent()).opens
    call = make_call(tokens=PROMPT)
    assert opened == Open("s", 1, PROMPT, 3, call.sampling, Mode.REJECTION, 4, 20, uniform=True)


async def test_a_drafter_gets_the_request_id_for_its_log() -> None:
    scene = Scene()
    with bound_contextvars(request_id="r-1"):
        scene.drafts.begin(4)
    (opened,) = (await scene.sent()).opens
    assert opened.request_id == "r-1"


@pytest.mark.parametrize(("wanted", "offered", "asked"), [(8, 16, 8), (8, 4, 4), (8, 0, 0), (0, 16, 0)])
async def test_chains_are_asked_for_as_far_as_the_drafter_pushes_them(wanted: int, offered: int, asked: int) -> None:
    """The drafter is of an earlier version and offers no chains."""
    scene = Scene(settings=DraftingSettings(outcomes=wanted), ready=False)
    scene.link.connected("small", 0.001, outcomes=offered)
    scene.drafts.begin(4)
    (opened,) = (await scene.sent()).opens
    assert opened.outcomes == asked


async def test_a_chain_pushed_for_the_verdict_is_proposed_without_a_wait() -> None:
    scene = Scene()
    scene.drafts.begin(2)
    scene.link.drafted(chunk_after(PROMPT, 4, 5))
    scene.link.drafted(chunk_after((*PROMPT, 4, 9), 6, 7))
    assert (await scene.propose()).draft.tokens == (4, 5)
    scene.drafts.commit((4, 9), 2, 2)
    proposal = await scene.propose()
    assert (proposal.draft.tokens, proposal.fallback) == ((6, 7), Fallback.NONE)


async def test_a_round_that_declines_says_whether_there_was_a_choice() -> None:
    scene = Scene(ready=False)
    assert scene.drafts.declined() is Fallback.UNAVAILABLE
    assert scene.drafts.source() is None
    scene.link.connected("small", 0.001)
    assert scene.drafts.declined() is Fallback.NOT_WORTH_IT
    assert scene.drafts.source() == "small, greedy"
    assert [scene.link.source(temperature) for temperature in (0.7, 1.0)] == ["small, cool", "small"]


async def test_a_drafter_hears_nothing_of_plain_rounds_until_drafts_are_wanted() -> None:
    scene = Scene()
    scene.drafts.commit((7, 8), 0, 0)
    scene.drafts.commit((9,), 0, 0)
    scene.drafts.begin(2)
    frame = await scene.sent()
    assert (frame.opens[0].tokens, frame.commits) == ((*PROMPT, 7, 8, 9), ())
    scene.link.drafted(chunk_after((*PROMPT, 7, 8, 9), 4, 5))
    assert (await scene.propose()).draft.tokens == (4, 5)


async def test_gamma_0_asks_nobody() -> None:
    scene = Scene()
    assert await scene.propose(gamma=0) == Proposal()
    scene.drafts.begin(0)
    assert scene.drafts.epoch == 1
    scene.link.outbox.ping(1)
    assert (await scene.sent()).opens == ()


async def test_verdicts_are_sent_with_absolute_lengths() -> None:
    scene = Scene()
    scene.drafts.begin(2)
    await scene.sent()
    scene.drafts.commit((7, 8), 1, 2)
    scene.drafts.commit((9,), 0, 3)
    assert (await scene.sent()).commits == (Commit("s", 1, 3, (7, 8, 9), 3),)


async def test_verdicts_are_kept_while_no_drafts_are_wanted() -> None:
    scene = Scene()
    scene.drafts.begin(2)
    await scene.sent()
    scene.drafts.commit((7,), 0, 0)
    scene.drafts.commit((8,), 0, 0)
    scene.link.outbox.ping(1)
    assert (await scene.sent()).commits == ()
    scene.drafts.commit((9,), 0, 4)
    assert (await scene.sent()).commits == (Commit("s", 1, 3, (7, 8, 9), 4),)


@pytest.mark.parametrize(("late", "left"), [((7, 8, 9), (9,)), ((7, 5, 6), ()), ((4, 8, 9), ())])
async def test_an_unwanted_draft_is_used_as_far_as_it_was_right(late: tuple[int, ...], left: tuple[int, ...]) -> None:
    scene = Scene(worth=0.0)
    scene.drafts.begin(2)
    await scene.sent()
    scene.drafts.commit((7,), 0, 0)
    scene.link.drafted(chunk_after(PROMPT, *late))
    scene.drafts.commit((8,), 0, 2)
    assert (await scene.sent()).commits == (Commit("s", 1, 3, (7, 8), 2),)
    assert (await scene.propose()).draft.tokens == left


async def test_drafts_of_another_epoch_or_prefix_never_get_in() -> None:
    scene = Scene(worth=0.0)
    scene.drafts.begin(1)
    other_epoch = DraftTokens("s", 2, 3, chunk_after(PROMPT).prefix_hash, Draft((7,)))
    scene.link.drafted(other_epoch)
    scene.link.drafted(chunk_after((1, 2, 9), 7))
    assert (await scene.propose(1)).draft.tokens == ()


async def test_a_lost_session_opens_elsewhere_with_its_tokens_and_epoch() -> None:
    scene = Scene(links=2, worth=0.0)
    scene.drafts.begin(2)
    first = scene.pool.choose("s", ())
    assert first is not None
    (second,) = (link for link in scene.links if link is not first)
    scene.drafts.commit((7, 8), 0, 2)
    first.lost("gone")
    await scene.propose()
    (opened,) = (await scene.sent(second)).opens
    assert (opened.tokens, opened.prompt_len, opened.epoch) == ((*PROMPT, 7, 8), 3, 1)


async def test_a_drafter_that_forgot_the_session_is_told_everything_again() -> None:
    scene = Scene(worth=0.0)
    scene.drafts.begin(2)
    await scene.sent()
    scene.drafts.commit((7,), 0, 2)
    scene.link.nacked(Nack("s", 1, NackReason.UNKNOWN, ""))
    await scene.propose()
    assert (await scene.sent()).opens[0].tokens == (*PROMPT, 7)


async def test_a_drafter_that_keeps_forgetting_is_asked_less_and_less() -> None:
    scene = Scene()
    for _ in range(2):
        scene.drafts.begin(2)
        scene.link.nacked(Nack("s", 1, NackReason.UNKNOWN, ""))
    assert (await scene.propose()).fallback is Fallback.UNAVAILABLE
    scene.clock.now += PATIENT.probe
    task = await scene.waiting()
    scene.link.lost("")
    await task


async def test_an_overloaded_drafter_is_left_alone_for_a_while() -> None:
    scene = Scene(settings=SETTINGS)
    scene.drafts.begin(2)
    scene.link.nacked(Nack("s", 1, NackReason.OVERLOADED, ""))
    assert (await scene.propose()).fallback is Fallback.OVERLOADED
    scene.clock.now += SETTINGS.overload_pause
    assert (await scene.propose()).fallback is Fallback.LATE


async def test_a_failed_drafter_is_avoided_for_a_while_and_not_called_overloaded() -> None:
    scene = Scene(settings=SETTINGS)
    scene.drafts.begin(2)
    scene.link.nacked(Nack("s", 1, NackReason.INTERNAL, ""))
    assert (await scene.propose()).fallback is Fallback.UNAVAILABLE
    scene.clock.now += SETTINGS.overload_pause
    assert (await scene.propose()).fallback is Fallback.LATE


@pytest.mark.parametrize("why", [NackReason.OVERLOADED, NackReason.INTERNAL])
async def test_a_session_that_is_refused_goes_elsewhere(why: NackReason) -> None:
    scene = Scene(links=2)
    scene.drafts.begin(2)
    first = scene.pool.choose("s", ())
    assert first is not None
    first.nacked(Nack("s", 1, why, ""))
    (second,) = (link for link in scene.links if link is not first)
    proposal = await scene.after(lambda: second.drafted(chunk_after(PROMPT, 7, 8)))
    assert proposal.draft.tokens == (7, 8)


@pytest.mark.parametrize("how", ["malformed frame", "unusable draft"])
async def test_a_drafter_that_talks_nonsense_is_left_for_good(how: str) -> None:
    scene = Scene()
    scene.drafts.begin(2)
    await scene.sent()
    if how == "malformed frame":
        scene.link.malformed("s", 1, "broken")
    else:
        scene.drafts.distrust()
    assert (await scene.sent()).closes == (Close("s", 1),)
    scene.clock.now += 1e9
    assert (await scene.propose()).fallback is Fallback.UNAVAILABLE


async def test_drafts_that_a_verdict_saw_are_drawn_anew() -> None:
    scene = Scene(worth=0.0)
    scene.drafts.begin(3)
    scene.link.drafted(chunk_after(PROMPT, 7, 8, 9))
    await scene.propose(3)
    await scene.sent()
    # The recovered token equals the second draft: the drafter would continue with the third, which was judged.
    scene.drafts.commit((7, 8), 3, 3)
    await scene.propose(3)
    frame = await scene.sent()
    assert frame.opens[0].tokens == (*PROMPT, 7, 8)
    assert frame.closes == ()


async def test_without_a_ready_drafter_the_reason_says_which_trouble_it_is() -> None:
    scene = Scene(ready=False)
    assert (await scene.propose()).fallback is Fallback.UNAVAILABLE
    scene.link.refused("another tokenizer")
    assert (await scene.propose()).fallback is Fallback.TOKENIZER


async def test_a_closed_session_is_closed_at_the_drafter() -> None:
    scene = Scene()
    scene.drafts.begin(2)
    await scene.sent()
    scene.drafts.close()
    scene.drafts.close()
    assert (await scene.sent()).closes == (Close("s", 1),)

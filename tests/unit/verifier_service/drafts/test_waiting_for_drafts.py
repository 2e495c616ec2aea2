"""How long a round waits for its drafts, and when it does not wait."""

import asyncio
import math

from specdec.rules.prefix import PrefixHash
from specdec.wire.generation import Fallback
from specdec.wire.session import DraftEnd
from tests.unit.verifier_service.drafts.drafts_scene import PROMPT, SETTINGS, Scene
from tests.unit.verifier_service.verifier_fakes import chunk_after
from verifier_service.backends.batch_plan import Gathers


async def test_a_round_waits_for_all_its_drafts() -> None:
    scene = Scene()
    task = await scene.waiting()
    scene.link.drafted(chunk_after(PROMPT, 7))
    await asyncio.sleep(0)
    assert not task.done()
    scene.link.drafted(chunk_after((*PROMPT, 7), 8))
    proposal = await task
    assert proposal.draft.tokens == (7, 8)
    assert proposal.fallback is Fallback.NONE


async def test_what_is_there_already_is_not_waited_for() -> None:
    scene = Scene()
    scene.drafts.begin(2)
    scene.link.drafted(chunk_after(PROMPT, 7, 8, 9))
    assert (await scene.propose()).draft.tokens == (7, 8)


async def test_the_end_of_drafting_ends_the_wait_with_what_is_there() -> None:
    scene = Scene()
    scene.drafts.begin(2)
    scene.link.drafted(chunk_after(PROMPT, 7))
    assert (await scene.after(lambda: scene.link.ended(end_after(PROMPT, 7)))).draft.tokens == (7,)


async def test_the_end_of_a_rejected_draft_does_not_end_the_next_wait() -> None:
    scene = Scene()
    scene.drafts.begin(4)
    scene.link.drafted(chunk_after(PROMPT, 7, 8))
    scene.link.ended(end_after(PROMPT, 7, 8))
    assert (await scene.propose(gamma=4)).draft.tokens == (7, 8)
    scene.drafts.commit((9,), 2, 4)
    task = await scene.waiting(gamma=4)
    scene.link.drafted(chunk_after((*PROMPT, 9), 5))
    scene.link.ended(end_after(PROMPT, 7, 8))  # an end that was on its way at the commit
    await asyncio.sleep(0)
    assert not task.done(), "the first draft of the new prefix has the length of the rejected one"
    scene.link.drafted(chunk_after((*PROMPT, 9, 5), 6))
    scene.link.ended(end_after((*PROMPT, 9), 5, 6))
    assert (await task).draft.tokens == (5, 6)


async def test_an_end_without_a_hash_counts_for_every_prefix_of_its_length() -> None:
    """A drafter of the previous release sends no hash."""
    scene = Scene()
    scene.drafts.begin(2)
    scene.link.drafted(chunk_after(PROMPT, 7))
    assert (await scene.after(lambda: scene.link.ended(DraftEnd("s", 1, 4, 0)))).draft.tokens == (7,)


def end_after(prefix: tuple[int, ...], *tokens: int) -> DraftEnd:
    """Return the end of a draft that continues the prefix."""
    whole = (*prefix, *tokens)
    return DraftEnd("s", 1, len(whole), PrefixHash(whole).value)


async def test_an_end_that_overtook_nothing_gives_a_reason() -> None:
    proposal = await (scene := Scene()).after(lambda: scene.link.ended(DraftEnd("s", 1, 3, 0)))
    assert (proposal.draft.tokens, proposal.fallback) == ((), Fallback.NO_MATCH)


async def test_a_lost_link_ends_the_wait_at_once() -> None:
    proposal = await (scene := Scene()).after(lambda: scene.link.lost("gone"))
    assert (proposal.draft.tokens, proposal.fallback) == ((), Fallback.UNAVAILABLE)


async def test_after_a_timeout_ragged_drafts_are_used() -> None:
    scene = Scene(settings=SETTINGS)
    scene.drafts.begin(4)
    scene.link.drafted(chunk_after(PROMPT, 7))
    proposal = await scene.propose(gamma=4)
    assert (proposal.draft.tokens, proposal.fallback) == ((7,), Fallback.NONE)


async def test_after_a_wait_in_vain_rounds_do_not_wait_until_drafts_fit_again() -> None:
    scene = Scene(settings=SETTINGS)
    assert (await scene.propose()).fallback is Fallback.LATE
    async with asyncio.timeout(0):
        assert (await scene.propose()).fallback is Fallback.LATE
    scene.link.drafted(chunk_after(PROMPT, 7))
    task = await scene.waiting()
    scene.link.drafted(chunk_after((*PROMPT, 7), 8))
    assert (await task).draft.tokens == (7, 8)


async def test_a_late_draft_is_not_waited_for_longer_than_it_is_worth() -> None:
    scene = Scene(worth=0.0)
    scene.caught_up()
    assert (await scene.propose()).fallback is Fallback.LATE
    scene.link.drafted(chunk_after(PROMPT, 7))
    assert (await scene.propose()).draft.tokens == (7,)
    # The drafter is late but not lost, so its breaker stays closed for other sessions.
    assert scene.link.breaker.allows(scene.clock.now)
    scene.worth = math.inf
    task = await scene.waiting()
    scene.link.drafted(chunk_after((*PROMPT, 7), 8))
    assert (await task).draft.tokens == (7, 8)


async def test_a_caller_who_fixed_gamma_waits_for_it_whatever_it_is_worth() -> None:
    scene = Scene()
    task = await scene.waiting()
    scene.link.drafted(chunk_after(PROMPT, 7, 8))
    assert (await task).draft.tokens == (7, 8)


async def test_after_a_probe_interval_a_round_waits_again() -> None:
    scene = Scene(settings=SETTINGS)
    await scene.propose()
    scene.clock.now += SETTINGS.probe
    await (await scene.waiting())


async def test_a_drafter_that_hangs_for_others_is_not_waited_for() -> None:
    scene = Scene(settings=SETTINGS)
    for _ in range(4):
        scene.link.breaker.failed(scene.clock.now)
    async with asyncio.timeout(0):
        assert (await scene.propose()).fallback is Fallback.LATE


async def test_no_pass_waits_for_a_drafter_that_still_reads() -> None:
    scene = Scene(worth=math.inf)
    proposal = await scene.hurried()
    assert (proposal.draft.tokens, proposal.fallback) == ((), Fallback.FIRST_ROUND)
    assert (proposal.waited, proposal.awaited) == (0.0, 0)
    scene.caught_up()
    assert scene.drafts.gathers is Gathers.ALWAYS
    task = await scene.waiting()
    scene.link.drafted(chunk_after(PROMPT, 7, 8))
    assert (await task).awaited == 2


async def test_a_drafter_that_was_not_told_of_many_tokens_has_to_catch_up_again() -> None:
    scene = Scene(worth=math.inf)
    scene.caught_up()
    scene.drafts.commit(range(9), 0, 0)
    scene.drafts.commit((7,), 0, 2)
    assert (await scene.hurried()).fallback is Fallback.FIRST_ROUND


async def test_a_drafter_that_knows_each_round_is_waited_for_after_any_delay() -> None:
    scene = Scene(worth=math.inf)
    scene.caught_up()
    scene.drafts.commit(range(8), 0, 0)
    scene.drafts.commit(range(20), 0, 2)
    task = await scene.waiting()
    scene.link.drafted(chunk_after((*PROMPT, *range(8), *range(20)), 7, 8))
    assert (await task).awaited == 2


async def test_what_the_drafter_could_not_draft_was_not_waited_for() -> None:
    scene = Scene()
    scene.drafts.begin(3)
    scene.link.drafted(chunk_after(PROMPT, 7))
    proposal = await scene.after(lambda: scene.link.ended(DraftEnd("s", 1, 4, 0)), gamma=3)
    assert (len(proposal.draft.tokens), proposal.awaited) == (1, 1)


def no_match(scene: Scene, length: int) -> None:
    scene.link.ended(DraftEnd("s", 1, length, 0))


async def let_it_wait(scene: Scene) -> None:
    """Let the drafter catch up, and commit one token, so that the next round waits."""
    scene.caught_up()
    scene.drafts.commit((3,), 0, 2)


async def test_after_an_empty_answer_no_pass_waits_until_the_source_matches() -> None:
    scene = Scene(worth=math.inf)
    await let_it_wait(scene)
    assert (await scene.after(lambda: no_match(scene, 4))).fallback is Fallback.NO_MATCH
    scene.drafts.commit((4,), 0, 2)
    proposal = await scene.hurried()
    assert (proposal.draft.tokens, proposal.fallback, proposal.awaited) == ((), Fallback.NO_MATCH, 0)
    scene.link.drafted(chunk_after((*PROMPT, 3, 4), 5, 6, 7))  # during the pass
    scene.drafts.commit((5,), 0, 2)
    assert (await scene.propose()).draft.tokens == (6, 7)
    scene.drafts.commit((6, 7, 8), 2, 2)
    task = await scene.waiting()
    scene.link.drafted(chunk_after((*PROMPT, 3, 4, 5, 6, 7, 8), 9, 10))
    assert (await task).draft.tokens == (9, 10)


async def test_a_draft_that_comes_before_the_pass_begins_is_taken() -> None:
    scene = Scene(worth=math.inf)
    await let_it_wait(scene)
    await scene.after(lambda: no_match(scene, 4))
    scene.drafts.commit((4,), 0, 2)
    assert scene.drafts.gathers is Gathers.NOT
    proposal = await scene.after(lambda: scene.link.drafted(chunk_after((*PROMPT, 3, 4), 5, 6)))
    assert proposal.draft.tokens == (5, 6)


async def test_a_draft_that_is_shorter_than_asked_for_is_no_answer_without_one() -> None:
    scene = Scene(worth=math.inf)
    await let_it_wait(scene)
    scene.link.drafted(chunk_after((*PROMPT, 3), 4))
    no_match(scene, 5)
    assert (await scene.propose()).draft.tokens == (4,)
    scene.drafts.commit((4, 8), 1, 2)
    assert (await scene.after(lambda: no_match(scene, 6))).fallback is Fallback.NO_MATCH


async def test_a_fixed_gamma_waits_for_a_source_that_had_no_match() -> None:
    scene = Scene()
    await scene.after(lambda: no_match(scene, 3))
    scene.drafts.commit((4,), 0, 2)
    assert (await scene.after(lambda: no_match(scene, 4))).fallback is Fallback.NO_MATCH


async def test_a_wait_in_vain_after_an_answer_without_a_draft_is_late() -> None:
    scene = Scene(settings=SETTINGS)
    await scene.after(lambda: no_match(scene, 3))
    scene.drafts.commit((4,), 0, 2)
    assert (await scene.propose()).fallback is Fallback.LATE

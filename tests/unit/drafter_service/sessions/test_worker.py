"""The drafter's thread drafts for all sessions that need it, and reads verdicts between steps."""

from dataclasses import replace

from specdec.rules.prefix import PrefixHash
from specdec.rules.speculation import Mode
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Close, DraftEnd
from tests.support.drafter_fakes import OPEN, VOCAB, ListStream, commit, continued, expected_drafts
from tests.unit.drafter_service.sessions.worker_bench import SETTINGS, Bench, drafted


def _fenced(draft: DraftTokens, prefix: list[int]) -> bool:
    return (draft.base_len, draft.prefix_hash) == (len(prefix), PrefixHash(prefix).value)


def test_an_opened_session_gets_a_whole_draft_fenced_by_what_it_continues(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    (draft,) = bench.stream.drafts
    assert list(draft.draft.tokens) == drafted()
    assert len(draft.draft.probs) == 3
    assert _fenced(draft, list(OPEN.tokens))
    assert (draft.session_id, draft.epoch) == ("s", 1)


def test_nobody_is_drafted_for_past_gamma(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    bench.worker.post(bench.stream, [commit(3, *drafted()[:1], gamma=2)])
    bench.worker.caught_up().result(timeout=30)
    bench.worker.post(bench.stream, [commit(4, *drafted()[1:2], gamma=2)])
    bench.stream.until(lambda: bench.stream.drafted == 4)
    assert bench.stream.tokens() == drafted(gamma=4)


def test_a_stream_that_ends_while_it_waits_for_the_worker_does_not_end_it(bench: Bench) -> None:
    waited = bench.worker.caught_up()
    assert waited.cancel() or waited.done()
    for _ in range(20):
        bench.worker.caught_up().cancel()
    bench.worker.caught_up().result(timeout=30)
    assert bench.worker.alive


def test_a_full_acceptance_goes_on_from_the_bonus_token(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    bonus = (drafted(gamma=4)[3] + 1) % VOCAB
    bench.worker.post(bench.stream, [commit(3, *drafted(), bonus)])
    bench.stream.until(lambda: bench.stream.drafted == 6)
    after = continued(OPEN, *drafted(), bonus)
    assert bench.stream.tokens()[3:] == [token for token, _ in expected_drafts(after, 3, support=8)]


def test_everyone_shares_the_same_step_and_a_stream_gets_one_frame_of_it(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="t", tokens=(3, 2, 1))])
    bench.stream.until(lambda: bench.stream.drafted == 6)
    assert [len(replies) for replies in bench.stream.frames] == [2]
    assert [len(chunks) for chunks in bench.model.passes] == [2, 2, 2]


def test_a_verdict_that_comes_during_a_step_cancels_the_rest_of_the_draft(bench: Bench) -> None:
    wrong = (drafted()[0] + 1) % VOCAB

    def before_pass() -> None:
        if len(bench.model.passes) == 1:
            bench.worker.post(bench.stream, [commit(3, wrong)])

    bench.model.before_pass = before_pass
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 3)
    after = continued(OPEN, wrong)
    assert bench.stream.tokens() == [token for token, _ in expected_drafts(after, 3, support=8)]
    assert _fenced(bench.stream.drafts[0], [*OPEN.tokens, wrong])


def test_a_verdict_that_the_chain_foresaw_gets_at_once_what_is_left_of_it() -> None:
    bench = Bench(SETTINGS.model_copy(update={"ahead": 4}))
    guessed = drafted(gamma=5)

    def before_pass() -> None:
        if len(bench.model.passes) == 4:
            bench.worker.post(bench.stream, [commit(3, *guessed[:3])])

    bench.start()
    bench.model.before_pass = before_pass
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted >= 5)
    bench.close()
    assert [draft.draft.tokens for draft in bench.stream.drafts[:2]] == [tuple(guessed[:3]), tuple(guessed[3:])]
    assert _fenced(bench.stream.drafts[1], [*OPEN.tokens, *guessed[:3]])


def test_drafting_ahead_survives_the_verdict_it_guessed() -> None:
    bench = Bench(SETTINGS.model_copy(update={"ahead": 2}))
    bench.start()
    bench.worker.post(bench.stream, [OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 5)
    guessed = drafted(gamma=8)
    assert bench.stream.tokens() == guessed[:5]
    bench.worker.post(bench.stream, [commit(3, *guessed[:4], gamma=2)])
    bench.stream.until(lambda: bench.stream.drafted == 8)
    assert bench.stream.tokens() == guessed
    bench.close()


def test_a_long_prompt_does_not_stop_a_session_that_drafts(bench: Bench) -> None:
    bench.worker.post(bench.stream, [replace(OPEN, session_id="long", tokens=(5,) * 50, max_len=60), OPEN])
    bench.stream.until(lambda: bench.stream.drafted == 6)
    first_of_long = next(row for row, draft in enumerate(bench.stream.drafts) if draft.session_id == "long")
    assert first_of_long == 1
    assert bench.stream.tokens("long") == drafted(tokens=(5,) * 50, max_len=60)
    assert max(sum(len(chunk.tokens) for chunk in chunks) for chunks in bench.model.passes) <= 17


def test_the_end_of_the_room_is_said_once(bench: Bench) -> None:
    bench.worker.post(bench.stream, [replace(OPEN, max_len=5), replace(OPEN, session_id="t", max_len=3)])
    bench.stream.until(lambda: len(bench.stream.ends) == 2)
    hashes = [PrefixHash((*OPEN.tokens, *drafted()[:count])).value for count in (0, 2)]
    assert bench.stream.ends == [DraftEnd("t", 1, 3, hashes[0]), DraftEnd("s", 1, 5, hashes[1])]
    assert bench.stream.tokens() == drafted()[:2]


def test_a_stream_that_is_full_is_not_drafted_for_until_it_has_room(bench: Bench) -> None:
    slow, quick = ListStream(2), bench.stream
    slow.full = True
    bench.worker.post(slow, [OPEN])
    bench.worker.post(quick, [OPEN])
    quick.until(lambda: quick.drafted == 3)
    assert not slow.frames
    slow.full = False
    bench.worker.wake()
    slow.until(lambda: slow.drafted == 3)


def test_a_stream_that_ends_frees_everything_and_hears_no_more(bench: Bench) -> None:
    free = bench.model.free
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="t")])
    bench.worker.end_stream(bench.stream)
    bench.worker.end_stream(bench.stream)
    bench.worker.caught_up().result(timeout=30)
    heard = len(bench.stream.frames)
    other = ListStream(2)
    bench.worker.post(other, [OPEN])
    other.until(lambda: other.drafted == 3)
    assert bench.model.free == free - len(OPEN.tokens) - 2
    assert len(bench.stream.frames) == heard


def test_load_and_metrics_say_what_happened(bench: Bench) -> None:
    bench.worker.post(bench.stream, [OPEN, replace(OPEN, session_id="t", mode=Mode.COUPLED)])
    bench.stream.until(lambda: bench.stream.drafted == 6)
    bench.worker.post(bench.stream, [Close("t", 1)])
    for _ in range(2):  # the second call runs after the metrics of the first iteration are set
        bench.worker.caught_up().result(timeout=30)
    assert bench.count("specdec_drafter_tokens_total") == 6
    assert bench.count("specdec_drafter_step_seconds_count") == 3
    assert bench.count("specdec_drafter_batch_size_sum") == 6
    assert bench.count("specdec_drafter_computed_tokens_total") == 2 * (3 + 1 + 1)
    assert bench.worker.load.sessions == 1
    assert bench.worker.load.step_seconds > 0

"""Greedy output equals that of transformers for any behaviour of a drafter on a real stream."""

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.integration.verifier.client import output, reasons
from tests.integration.verifier.draft_scripts import (
    beyond,
    corrupt_hash,
    malformed,
    oracle,
    outside_vocabulary,
    silent,
    stale,
    wrong,
)
from tests.integration.verifier.house import House
from tests.integration.verifier.scripted_drafter import Script, Seen, drafts, eventually
from tests.integration.verifier.target import LENGTH, PROMPT, Target


def sums_to_nothing(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    message = drafts(seen, [7] * gamma)
    message.drafts[0].support_weights = bytes(2 * gamma)
    return [message]


def lacks_its_token(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    message = drafts(seen, [7] * gamma)
    message.drafts[0].support_ids = b"\x08\0\0\0" * gamma
    return [message]


def nothing_more(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    end = pb.DraftEnd(session_id=seen.session_id, epoch=seen.epoch, base_len=len(seen.tokens))
    return [pb.DraftResponse(ends=[end])]


def nack(reason: "pb.Nack.Reason.ValueType") -> Script:
    def script(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        return [pb.DraftResponse(nacks=[pb.Nack(session_id=seen.session_id, epoch=seen.epoch, reason=reason)])]

    return script


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
async def test_good_drafts_are_accepted(house: House, target: Target, mode: Mode) -> None:
    drafter = await house.drafter(oracle(target))
    client = await house.verifier(drafter)
    rounds = await client.rounds(gamma=4, mode=mode)
    assert output(rounds) == target.greedy(PROMPT, LENGTH)
    # The first round is the prompt's own. Every other round commits five tokens until the end.
    assert [response.accepted for response in rounds][1:-1] == [4] * (len(rounds) - 2)
    assert reasons(rounds) == set()
    assert len(rounds) < LENGTH / 4
    await eventually(lambda: drafter.servicer.closes == ["s"])


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (wrong, set()),
        (corrupt_hash, {"late"}),
        (stale, {"late"}),
        (beyond, {"late"}),
        (malformed, {"drafter_unavailable"}),
        (outside_vocabulary, {"drafter_unavailable"}),
        (sums_to_nothing, {"drafter_unavailable"}),
        (lacks_its_token, {"drafter_unavailable"}),
        (silent, {"late"}),
        (nothing_more, {"no_match"}),
        (nack(pb.Nack.REASON_UNKNOWN), {"drafter_unavailable"}),
        (nack(pb.Nack.REASON_OVERLOADED), {"overloaded"}),
        (nack(pb.Nack.REASON_INTERNAL), {"drafter_unavailable"}),
    ],
)
async def test_bad_drafts_cost_speed_and_nothing_else(
    house: House, target: Target, script: Script, expected: set[str]
) -> None:
    # Waits that end without a draft are kept short.
    hasty = {"timeout": 0.2 if "late" in expected else 5.0, "probe": 0.3, "overload_pause": 60}
    client = await house.verifier(await house.drafter(script), drafting=hasty)
    # One token is possible, and q̂ is still checked; at temperature 0 there would be none.
    rounds = await client.rounds(gamma=3, params=SamplingParams(temperature=1.0, top_k=1))
    assert output(rounds) == target.greedy(PROMPT, LENGTH)
    assert reasons(rounds) == expected


async def test_late_drafts_are_used_as_far_as_they_still_fit(house: House, target: Target) -> None:
    text = target.greedy(PROMPT, LENGTH)

    def one_commit_late(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        """Send the drafts for a prefix after the verifier has committed more."""
        if len(seen.tokens) == len(PROMPT):
            return []
        done = len(seen.tokens) - len(PROMPT)
        return [drafts(seen, text[done - 1 : done - 1 + 6], base_len=len(seen.tokens) - 1)]

    client = await house.verifier(await house.drafter(one_commit_late))
    rounds = await client.rounds(gamma=4)
    assert output(rounds) == text
    assert sum(response.accepted for response in rounds) > LENGTH / 2


async def test_a_malformed_frame_hurts_only_its_own_session(house: House, target: Target) -> None:
    good = oracle(target)

    def script(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        return malformed(seen, gamma) if seen.session_id == "bad" else good(seen, gamma)

    drafter = await house.drafter(script)
    client = await house.verifier(drafter)
    bad, fine = await asyncio.gather(client.rounds(session="bad", gamma=3), client.rounds(session="fine", gamma=3))
    assert output(bad) == output(fine) == target.greedy(PROMPT, LENGTH)
    assert sum(response.accepted for response in bad) == 0
    assert sum(response.accepted for response in fine) > LENGTH / 2
    assert drafter.servicer.streams == 1


async def test_a_drafter_that_dies_mid_stream_is_survived_and_found_again(house: House, target: Target) -> None:
    text = target.greedy(PROMPT, LENGTH)
    drafter = await house.drafter(oracle(target), dies_after=3)
    client = await house.verifier(drafter)
    rounds = await client.rounds(gamma=2)
    assert output(rounds) == text
    assert "drafter_unavailable" in reasons(rounds)
    await eventually(lambda: drafter.servicer.streams == 2)
    await house.settled(client)
    again = await client.rounds(gamma=2, epoch=2)
    assert output(again) == target.greedy(PROMPT, LENGTH)
    assert reasons(again) == set()


async def test_a_lost_session_opens_again_with_prompt_and_committed_tokens(house: House, target: Target) -> None:
    text = target.greedy(PROMPT, LENGTH)
    pair = [await house.drafter(oracle(target), dies_after=3) for _ in range(2)]
    client = await house.verifier(*pair)
    assert output(await client.rounds(gamma=2)) == text
    first, second = (drafter.servicer.opens[0] for drafter in pair)
    opened = max(first, second, key=lambda message: len(message.tokens))
    assert opened.prompt_len == len(PROMPT)
    assert opened.epoch == 1
    assert len(opened.tokens) // 4 > len(PROMPT)
    assert list(memoryview(opened.tokens).cast("i")) == [*PROMPT, *text][: len(opened.tokens) // 4]


async def test_sessions_share_one_stream_and_do_not_mix(house: House, target: Target) -> None:
    drafter = await house.drafter(oracle(target))
    client = await house.verifier(drafter)
    prompts = {f"s{index}": [*PROMPT, 50 + index] for index in range(6)}
    found = await asyncio.gather(*(client.rounds(tokens, session=name, gamma=3) for name, tokens in prompts.items()))
    assert [output(rounds) for rounds in found] == [target.greedy(tokens, LENGTH) for tokens in prompts.values()]
    assert drafter.servicer.streams == 1
    assert drafter.servicer.largest_frame > 1


async def test_another_tokenizer_is_refused_visibly(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(oracle(target), tokenizer_hash="other"))
    rounds = await client.rounds(gamma=3)
    assert output(rounds) == target.greedy(PROMPT, LENGTH)
    assert reasons(rounds) == {"tokenizer_mismatch"}
    (shown,) = (await client.info()).drafters
    assert shown.state.startswith("refused: ")


async def test_a_drafter_that_refuses_us_is_shown_as_refused(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(silent, refuses=True))
    (shown,) = (await client.info()).drafters
    assert shown.state == "refused: the tokenizers differ"


async def test_without_drafters_every_token_is_plain(house: House, target: Target) -> None:
    client = await house.verifier()
    rounds = await client.rounds(gamma=3)
    assert output(rounds) == target.greedy(PROMPT, LENGTH)
    assert len(rounds) == LENGTH
    assert reasons(rounds) == {"no_match"}
    off = await client.rounds(epoch=2, mode=Mode.OFF)
    assert output(off) == output(rounds)
    assert reasons(off) == set()


async def test_a_drafter_that_is_not_there_is_plain_too(house: House, target: Target) -> None:
    client = await house.verifier("127.0.0.1:1", wait=False)
    rounds = await client.rounds(gamma=3)
    assert output(rounds) == target.greedy(PROMPT, LENGTH)
    assert reasons(rounds) == {"drafter_unavailable"}


async def test_automatic_gamma_speculates_when_it_pays(house: House, target: Target) -> None:
    """Whether drafting pays is measured, so a single answer on a busy machine shows nothing."""
    client = await house.verifier(await house.drafter(oracle(target)), gamma="auto")
    async with asyncio.timeout(60):
        for epoch in count(1):
            rounds = await client.rounds(epoch=epoch)
            assert output(rounds) == target.greedy(PROMPT, LENGTH)
            if sum(response.accepted for response in rounds) > LENGTH / 2:
                return

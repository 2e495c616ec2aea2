"""One pass: logits, distributions, verdicts and KV rollback. An error affects only its own session."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdec.engine import Chunk
from specdec.errors import AllMasked, InternalError, NoDistribution
from specdec.rules.draft import Draft, SparseProbs, Verdict
from specdec.rules.speculation import Mode, Speculation, TreeOptions
from specdec.sampling.params import SamplingParams
from specdec.trees.tree import ROOT, Draws, Tree, TreeDraft
from tests.unit.verifier_service.verifier_fakes import (
    GREEDY,
    TableEngine,
    continuation,
    following,
    make_row,
    point_mass,
)
from verifier_service.backends.batch_plan import Row, ScheduledChunk
from verifier_service.backends.target_pass import verify_batch

TOKENS = (9, 9, 9, 9, 3)


def engine_with(*sessions: str, length: int = 4) -> TableEngine:
    engine = TableEngine()
    for session in sessions:
        engine.admit(session, 50)
        engine.kv[session] = [9] * length
    return engine


def whole(row: Row, start: int = 4) -> ScheduledChunk:
    return ScheduledChunk(row, start, row.goal - start)


def row(session: str = "s", *drafts: int, mode: Mode = Mode.REJECTION) -> ScheduledChunk:
    return whole(make_row(session, TOKENS, draft=point_mass(*drafts), speculation=Speculation(mode)))


def lengths(engine: TableEngine) -> dict[str, int]:
    return {session: len(kv) for session, kv in engine.kv.items()}


def verdict(result: object) -> Verdict:
    assert isinstance(result, Verdict)
    return result


def test_an_empty_draft_gets_one_plain_token() -> None:
    engine = engine_with("s")
    (result,) = verify_batch(engine, [row()])
    assert result == Verdict((following(3),), 0, 0)
    assert engine.length("s") == 5


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
def test_rejected_drafts_leave_no_kv(mode: Mode) -> None:
    engine, truth = engine_with("s"), continuation(3, 3)
    (result,) = verify_batch(engine, [row("s", truth[0], truth[1], 15, mode=mode)])
    assert result == Verdict(truth, accepted=2, drafted=3)
    assert engine.length("s") == 7


def test_rows_of_every_mode_and_length_share_a_pass() -> None:
    engine, truth = engine_with("a", "b", "c", "p"), continuation(3, 5)
    batch = [
        row("a", *truth[:2]),
        row("b", mode=Mode.OFF),
        ScheduledChunk(make_row("p", range(10), 9), 4, 2),
        row("c", *truth[:4], mode=Mode.COUPLED),
    ]
    first, second, prefilled, third = verify_batch(engine, batch)
    assert len(engine.batches) == 1
    assert [verdict(each).tokens for each in (first, second, third)] == [truth[:3], truth[:1], truth[:5]]
    assert prefilled is None
    assert lengths(engine) == {"a": 7, "b": 5, "c": 9, "p": 6}
    assert engine.kv["p"][4:] == [4, 5]


def test_the_last_piece_of_a_prompt_goes_with_the_first_drafts() -> None:
    engine, truth = engine_with("s", length=0), continuation(3, 3)
    last = make_row("s", (9, 9, 3), draft=point_mass(*truth[:2]))
    (result,) = verify_batch(engine, [whole(last, start=0)])
    assert verdict(result).tokens == truth
    assert engine.batches[0][0].logits == 3
    assert engine.length("s") == 5


def test_a_row_that_lacks_more_than_the_pass_computes_is_not_judged_yet() -> None:
    engine = engine_with("s", length=0)
    early = make_row("s", (9, 9, 9, 3), draft=point_mass(*continuation(3, 2)))
    assert verify_batch(engine, [ScheduledChunk(early, 0, 2)]) == [None]
    assert (engine.kv["s"], engine.batches[0][0].logits) == ([9, 9], 0)


def test_penalties_see_the_drafts_before_each_position() -> None:
    # Drafts before a position count as output for the parameters at that position.
    engine = engine_with("s")
    never_again = SamplingParams(temperature=0.0, logit_bias={following(3): -100.0})
    counted = SamplingParams(temperature=0.0, min_tokens=2, end_token_ids=(following(following(3)),))
    (banned,) = verify_batch(engine, [whole(make_row("s", TOKENS, sampling=never_again))])
    assert verdict(banned).tokens != (following(3),)
    engine.truncate("s", 4)
    draft = point_mass(*continuation(3, 2))
    (masked,) = verify_batch(engine, [whole(make_row("s", TOKENS, draft=draft, prompt_len=5, sampling=counted))])
    # With one draft before it, the output has fewer than two tokens, so the end id is masked.
    assert verdict(masked).accepted == 1


def test_a_session_that_breaks_the_model_fails_alone() -> None:
    engine = engine_with("good", "bad")
    engine.poisoned.add("bad")
    good, bad = verify_batch(engine, [row("good", *continuation(3, 2)), row("bad")])
    assert verdict(good).accepted == 2
    assert isinstance(bad, InternalError)
    assert lengths(engine) == {"good": 7, "bad": 4}


def test_lengths_are_rolled_back_when_logits_are_no_distribution() -> None:
    engine = engine_with("s")
    engine.nan.add("s")
    (result,) = verify_batch(engine, [row("s", 1, 2)])
    assert isinstance(result, NoDistribution)
    assert engine.length("s") == 4


def test_an_invalid_draft_costs_its_row_only_the_draft() -> None:
    engine = engine_with("good", "bad")
    broken = whole(make_row("bad", TOKENS, draft=Draft((1, 2), ())))
    good, bad = verify_batch(engine, [row("good", *continuation(3, 2)), broken])
    assert verdict(good).accepted == 2
    assert bad == Verdict((following(3),), 0, 0)
    assert lengths(engine) == {"good": 7, "bad": 5}


def test_a_sequence_without_a_distribution_fails_alone_and_says_so() -> None:
    engine = engine_with("good", "nan", "masked")
    engine.nan.add("nan")
    nothing = SamplingParams(banned_token_ids=tuple(range(16)))
    masked = whole(make_row("masked", TOKENS, draft=point_mass(1), sampling=nothing))
    good, nan, blocked = verify_batch(engine, [row("good", *continuation(3, 2)), row("nan", 1, 2), masked])
    assert verdict(good).accepted == 2
    assert (type(nan), type(blocked)) == (NoDistribution, AllMasked)
    assert lengths(engine) == {"good": 7, "nan": 4, "masked": 4}


def test_rows_that_cannot_be_judged_cost_the_others_no_pass() -> None:
    names = [f"s{number}" for number in range(9)]
    engine = engine_with(*names)
    passes = Counter[str]()
    forward = engine.forward

    def counted(chunks: Sequence[Chunk]) -> Tensor:
        passes["all"] += 1
        return forward(chunks)

    engine.forward = counted  # type: ignore[method-assign]
    nothing = SamplingParams(banned_token_ids=tuple(range(16)))
    bad = {"s2", "s3", "s8"}
    batch = [
        whole(make_row(name, TOKENS, draft=point_mass(1), sampling=nothing)) if name in bad else row(name, 1)
        for name in names
    ]
    results = verify_batch(engine, batch)
    assert {name for name, result in zip(names, results, strict=True) if isinstance(result, AllMasked)} == bad
    assert passes["all"] == 1
    assert {name: length for name, length in lengths(engine).items() if name in bad} == dict.fromkeys(bad, 4)
    alone = engine_with("s0")
    assert results[0] == verify_batch(alone, [row("s0", 1)])[0]


class NanBehind(TableEngine):
    """A model without a valid distribution after one token."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        logits, ends = super().forward(chunks), [t for c in chunks for t in c.tokens[len(c.tokens) - c.logits :]]
        return logits + torch.tensor([torch.nan if token == self.token else 0.0 for token in ends])[:, None]


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
def test_a_row_without_a_law_after_a_rejected_draft_changes_nothing(mode: Mode) -> None:
    wrong = (following(3) + 1) % 16
    results = []
    for engine in (NanBehind(wrong), TableEngine()):
        engine.admit("s", 50)
        engine.kv["s"] = [9] * 4
        results += verify_batch(engine, [row("s", wrong, 1, mode=mode)])
        assert len(engine.batches) == 1
    assert results[0] == results[1] == Verdict((following(3),), accepted=0, drafted=2)


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
def test_a_row_without_a_law_after_an_accepted_draft_fails_the_next_round(mode: Mode) -> None:
    truth = continuation(3, 3)
    engine = NanBehind(truth[1])
    engine.admit("s", 50)
    engine.kv["s"] = [9] * 4
    (result,) = verify_batch(engine, [row("s", *truth, mode=mode)])
    assert result == Verdict(truth[:2], accepted=2, drafted=3)
    assert engine.length("s") == 6
    following_round = whole(make_row("s", (*TOKENS, *truth[:2]), draft=point_mass(truth[2])), start=6)
    (failed,) = verify_batch(engine, [following_round])
    assert isinstance(failed, NoDistribution)


def asking(session: str, *drafts: int, logprobs: int, params: SamplingParams = GREEDY) -> ScheduledChunk:
    return whole(make_row(session, TOKENS, draft=point_mass(*drafts), sampling=params, logprobs=logprobs))


def test_each_row_is_scored_at_its_own_positions_and_only_when_it_asks() -> None:
    engine, truth = engine_with("a", "b", "c"), continuation(3, 3)
    rejected, mute, plain = verify_batch(
        engine,
        [
            asking("a", truth[0], 0, logprobs=1),
            row("b", *truth[:2]),
            asking("c", logprobs=0, params=SamplingParams(temperature=0.0, logit_bias={9: 100.0})),
        ],
    )
    assert [each.top[0][0] for each in verdict(rejected).logprobs] == list(truth[:2])
    assert all(each.logprob == each.top[0][1] > -1e-6 for each in verdict(rejected).logprobs)
    assert verdict(mute).logprobs == ()
    # The bias decides the drawn token; reported log probabilities come from the model's own logits.
    assert verdict(plain).tokens == (9,)
    assert [(each.top, each.logprob < -29) for each in verdict(plain).logprobs] == [((), True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lenience_keeps_what_exact_verification_would_not(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, allowed_token_ids=(1, 2), logit_bias={1: 0.5})
    draft = Draft((2,), (SparseProbs(torch.tensor([1, 2]), torch.tensor([1, 65535])),))
    # p(2) is 0.38 and q(2) nearly 1: exact verification keeps 38 in 100, lenience 0.3 keeps all.
    kept = {1.0: 0, 0.3: 0}
    for ell in kept:
        for seed in range(100):
            engine = engine_with("s")
            speculation = Speculation(Mode.REJECTION, lenience=ell)
            lenient = make_row("s", TOKENS, draft=draft, sampling=replace(params, seed=seed), speculation=speculation)
            (result,) = verify_batch(engine, [whole(lenient)])
            kept[ell] += verdict(result).accepted
    assert kept[0.3] == 100
    assert kept[1.0] == 0 if temperature == 0.0 else 25 < kept[1.0] < 51


def test_detail_is_only_for_the_rows_that_ask_and_changes_no_verdict() -> None:
    truth = continuation(3, 3)

    def asked(session: str, detail: bool) -> ScheduledChunk:
        speculation = Speculation(Mode.REJECTION, detail=detail)
        return whole(make_row(session, TOKENS, draft=point_mass(truth[0], 14), speculation=speculation))

    results = verify_batch(engine_with("a", "b"), [asked("a", False), asked("b", True)])
    silent, told = (verdict(result) for result in results)
    assert silent == told._replace(judged_tokens=(), overlaps=())
    assert (silent.judged_tokens, told.accepted) == ((), 1)
    kept, refused = told.judged_tokens
    assert (kept.q, kept.threshold, refused.q) == (1.0, kept.p, 1.0)
    assert kept.p > 0.99
    assert refused.p < 0.01
    assert all(token.u is not None for token in told.judged_tokens)


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.COUPLED])
def test_a_tree_that_the_pass_refuses_costs_its_drafts_and_no_answer(mode: Mode) -> None:
    engine, bad = engine_with("s"), SparseProbs(torch.tensor([5, 5]), torch.tensor([0, 0]))
    tree = TreeDraft(Tree((ROOT,)), (10**6,), proposals=((Draws((0,), bad),), ()))
    options = TreeOptions(nodes=1, width=1, depth=1)
    speculation = Speculation(mode, tree=options)
    (result,) = verify_batch(engine, [whole(make_row("s", TOKENS, draft=tree, speculation=speculation))])
    assert verdict(result).tokens == (following(3),)
    assert engine.length("s") == 5

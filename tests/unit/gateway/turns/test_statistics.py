"""Totals of speculation agree with each other, under vLLM's names."""

from collections import Counter
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.replies.statistics import PromptTokensDetails, metrics_of, report_of, usage_of
from gateway.turns.events import Finished
from gateway.turns.statistics import Summary, Tally, added, tallies_of, total
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Round, Speedup, Timing

ROUNDS = st.lists(st.integers(0, 8).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))))


@given(rounds=ROUNDS)
def test_the_sums_agree(rounds: list[tuple[int, int]]) -> None:
    counts = Counter((drafted, accepted, "" if drafted else "drafter_unavailable") for drafted, accepted in rounds)
    summary = Summary(Speculation(Mode.REJECTION), counts)
    histogram = summary.acceptance_histogram
    assert len(histogram) == summary.num_spec_tokens + 1
    assert sum(histogram) == summary.num_spec_steps
    assert sum(count * rounds for count, rounds in enumerate(histogram)) == summary.num_accepted_draft_tokens
    assert summary.num_spec_steps + summary.num_plain_steps == len(rounds)
    assert sum(summary.fallbacks.values()) == summary.num_plain_steps
    assert summary.num_draft_tokens == sum(drafted for drafted, _ in rounds)


def test_the_shape_is_vllms() -> None:
    summary = Summary(Speculation(Mode.BLOCK, 3), Counter({(3, 0, ""): 39, (3, 1, ""): 1, (3, 3, ""): 3}))
    metrics = metrics_of(summary)
    assert metrics is not None
    assert metrics.model_dump() == {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + 10 / 43,
            "draft_acceptance_rate": 10 / 129,
            "acceptance_histogram": [39, 1, 0, 3],
            "num_spec_steps": 43,
            "num_accepted_draft_tokens": 10,
            "num_draft_tokens": 129,
            "num_spec_tokens": 3,
        }
    }
    assert report_of(summary).model_dump(exclude_unset=True) == {
        "mode": "block",
        "gamma": 3,
        "lenience": 1.0,
        "lossy": False,
        "fallbacks": {},
    }


def test_lenience_is_labelled_lossy() -> None:
    report = report_of(Summary(Speculation(Mode.REJECTION, lenience=0.9), Counter()))
    assert (report.lenience, report.lossy) == (0.9, True)


def test_without_a_draft_there_are_no_metrics_but_reasons() -> None:
    summary = Summary(Speculation(Mode.REJECTION), Counter([(0, 0, "drafter_unavailable")]))
    assert metrics_of(summary) is None
    assert (summary.draft_acceptance_rate, summary.mean_acceptance_length) == (0.0, 0.0)
    assert report_of(summary).model_dump(exclude_unset=True) == {
        "mode": "rejection",
        "gamma": "auto",
        "lenience": 1.0,
        "lossy": False,
        "fallbacks": {"drafter_unavailable": 1},
    }


def drafted(drafter: str, drafts: int, accepted: int, forced: int = 0, draft_seconds: float = 0.002) -> Round:
    return Round(
        base_len=5,
        draft=(1,) * drafts,
        accepted=accepted,
        drafter=drafter,
        forced=forced,
        timing=Timing(draft=draft_seconds, verify=0.01),
    )


def sums(*rounds: Round) -> dict[str, Tally]:
    return reduce(added, map(tallies_of, rounds), {})


def test_each_drafter_has_its_own_sums_and_a_prediction_is_in_the_usage() -> None:
    predicted = [drafted("prediction", 4, accepted) for accepted in (4, 4, 1)]
    rounds = Counter({(4, 4, ""): 2, (4, 1, ""): 1, (3, 0, ""): 2, (0, 0, "no_match"): 5})
    drafters = sums(*predicted, drafted("ngram", 3, 0), drafted("ngram", 3, 0))
    summary = Summary(Speculation(Mode.REJECTION, prediction=(1, 2)), rounds, drafters=drafters)
    assert summary.fallbacks == {"no_match": 5}
    report = report_of(summary).model_dump()["drafters"]
    assert report["prediction"] == {
        "num_spec_steps": 3,
        "num_draft_tokens": 12,
        "num_accepted_draft_tokens": 9,
        "alpha": 0.9,
        "c": pytest.approx(0.05),
    }
    assert report["ngram"]["alpha"] == 0.0
    usage = usage_of([finished(summary)], [finished(summary)])
    assert (usage.total_tokens, usage.prompt_tokens_details) == (25, PromptTokensDetails(cached_tokens=3))
    details = usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (9, 3)
    unpredicted = finished(replace(summary, speculation=Speculation()))
    assert usage_of([unpredicted], [unpredicted]).completion_tokens_details is None


def test_tokens_that_a_grammar_forced_are_its_own_and_took_no_time() -> None:
    kept = sums(drafted("model", 6, 6, forced=4))
    assert kept["model"] == Tally(1, 2, 2, 0, 2, 0.002 / 0.01)
    assert kept["grammar"] == Tally(1, 4, 4)
    refused = sums(drafted("model", 6, 1, forced=4))
    assert refused["model"].alpha == 0.5
    assert (refused["grammar"].drafted, refused["grammar"].rejections) == (4, 0)
    strayed = sums(drafted("model", 6, 3, forced=4))
    assert (strayed["model"].alpha, strayed["grammar"].alpha) == (1.0, 0.5)
    alone = sums(drafted("grammar", 3, 3, forced=3))
    assert set(alone) == {"grammar"}
    assert alone["grammar"].c is None


def test_c_is_unknown_for_rounds_that_were_read_back() -> None:
    read_back = drafted("model", 4, 4)._replace(timing=Timing())
    assert sums(read_back)["model"].c is None
    assert sums(read_back, drafted("model", 4, 4))["model"].c == pytest.approx(0.05)


def test_a_request_sums_the_drafters_of_its_generations() -> None:
    first = Summary(Speculation(), Counter(), drafters=sums(drafted("model", 4, 4)))
    second = Summary(Speculation(), Counter(), drafters=sums(drafted("model", 4, 0), drafted("ngram", 2, 1)))
    both = total([first, second]).drafters
    assert (both["model"].drafted, both["model"].alpha, both["ngram"].accepted) == (8, 0.8, 1)


def finished(summary: Summary) -> Finished:
    return Finished(FinishReason.LENGTH, "", prompt_tokens=5, completion_tokens=20, cached_tokens=3, summary=summary)


def test_where_the_verifier_chose_gamma_the_report_says_what_it_rests_on() -> None:
    def detail(speedup: Speedup) -> object:
        report = report_of(Summary(Speculation(Mode.REJECTION), Counter(), speedup))
        return report.model_dump(exclude_unset=True).get("detail")

    assert detail(Speedup(1.5, 1.25)) == {"predicted_speedup": 1.5, "measured_speedup": 1.25}
    assert detail(Speedup(1.5)) == {"predicted_speedup": 1.5, "measured_speedup": None}
    assert detail(Speedup()) is None

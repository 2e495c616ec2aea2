"""Separate metrics for each kind of drafter."""

from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Round, Timing
from tests.unit.verifier_service.verifier_fakes import make_metrics
from verifier_service.metrics import VerifierMetrics


def drafted(drafter: str, drafts: int, accepted: int, finish: FinishReason | None = None, forced: int = 0) -> Round:
    tokens = accepted if finish else accepted + 1
    return Round(
        base_len=5,
        tokens=(1,) * tokens,
        origins=(Origin.ACCEPTED,) * tokens,
        draft=(1,) * drafts,
        accepted=accepted,
        drafter=drafter,
        forced=forced,
        finish=finish,
        timing=Timing(draft=0.002, verify=0.01),
    )


def value(metrics: VerifierMetrics, name: str, drafter: str) -> float | None:
    return metrics.registry.get_sample_value(f"specdec_spec_drafter_{name}", {"drafter": drafter})


def test_rounds_tokens_alpha_and_c_are_apart_for_each_kind() -> None:
    metrics = make_metrics()
    metrics.count(drafted("ngram", 4, 4), 0)
    metrics.count(drafted("ngram", 4, 1), 0)
    metrics.count(drafted("model", 2, 0), 2)
    metrics.count(Round(base_len=5, tokens=(1,), origins=(Origin.PLAIN,)), 0)
    assert value(metrics, "rounds_total", "ngram") == 2
    assert value(metrics, "draft_tokens_total", "ngram") == 8
    assert value(metrics, "accepted_tokens_total", "ngram") == 5
    assert 0.8 < (value(metrics, "alpha", "ngram") or 0.0) < 0.86
    assert (value(metrics, "alpha", "model") or 0.0) < 0.05
    assert abs((value(metrics, "cost_c", "ngram") or 0.0) - 0.05) < 1e-9
    assert value(metrics, "rounds_total", "") is None


def test_what_an_end_cuts_off_is_no_rejection() -> None:
    metrics = make_metrics()
    metrics.count(drafted("suffix", 8, 3, FinishReason.LENGTH), 0)
    assert (value(metrics, "alpha", "suffix") or 0.0) > 0.99


def test_tokens_that_a_grammar_forced_are_not_the_drafters_own() -> None:
    metrics = make_metrics()
    metrics.count(drafted("model", 6, 3, forced=4), 2)
    metrics.count(drafted("model", 6, 1, forced=4), 2)
    metrics.count(drafted("grammar", 3, 3, forced=3), 0)
    assert value(metrics, "draft_tokens_total", "model") == 4
    assert value(metrics, "accepted_tokens_total", "model") == 3
    assert value(metrics, "rounds_total", "grammar") == 3
    assert value(metrics, "draft_tokens_total", "grammar") == 11
    assert value(metrics, "accepted_tokens_total", "grammar") == 4
    assert 0.74 < (value(metrics, "alpha", "model") or 0.0) < 0.76  # one rejection, of its own second token
    assert 0.78 < (value(metrics, "alpha", "grammar") or 0.0) < 0.82  # one, if forced tokens were judged at all
    assert abs((value(metrics, "cost_c", "model") or 0.0) - 0.1) < 1e-9
    assert value(metrics, "cost_c", "grammar") is None

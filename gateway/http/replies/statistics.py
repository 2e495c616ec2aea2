"""The counts and statistics in the answers of the HTTP API: OpenAI's usage, vLLM's object, and ours."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from gateway.turns.events import Finished
from gateway.turns.statistics import Summary, Tally, total
from specdec.beams.options import BeamReport
from specdec.planning.gamma_policy import PolicyKind


class CompletionTokensDetails(BaseModel):
    """Counts of tokens drafted from the request's prediction, with OpenAI's names."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptTokensDetails(BaseModel):
    """Counts of the prompt's tokens."""

    cached_tokens: int


class Usage(BaseModel):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    """Only when the request has a prediction."""


class SpeculativeDecoding(BaseModel):
    """The Summary's fields that vLLM reports, under its names."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(BaseModel):
    """Container of the statistics, as in vLLM's answers."""

    speculative_decoding: SpeculativeDecoding


class DrafterReport(BaseModel):
    """Counts of one drafter's drafts."""

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    alpha: float
    """Estimated chance that a draft token is accepted."""
    c: float | None
    """Time that rounds waited for one of its tokens, in target passes; None while unknown."""


class SpeculationDetail(BaseModel):
    """Tokens per second of the verifier's batch with drafts, divided by those without. γ is chosen by them."""

    predicted_speedup: float
    measured_speedup: float | None
    """None before the first measurement."""


class BeamSearchReport(BaseModel):
    """Result of a beam search, besides its tokens."""

    score: float
    """Log probability of the tokens, divided by their number to the power of the length penalty."""
    num_steps: int
    """Steps of the search: each extends all beams by a token."""
    num_accepted_steps: int
    """Steps without a target pass of their own, because a drafter had proposed all their beams."""


class SpeculationReport(BaseModel):
    """Speculation settings of the request, its statistics, and the reasons of rounds without a draft."""

    mode: Literal["off", "rejection", "block", "coupled"]
    gamma: int | PolicyKind | None = None
    """None for trees, and in mode off."""
    lenience: float | None = None
    lossy: bool
    """Whether the output may differ in distribution from the target's: lenience is below 1."""
    fallbacks: dict[str, int]
    drafters: dict[str, DrafterReport] = {}
    """Counters by kind of drafter; set only if there was a draft."""
    detail: SpeculationDetail | None = None
    """Set where the verifier chose γ."""
    beam_search: BeamSearchReport | None = None
    """Set after a beam search, unless the answer is read back."""


def metrics_of(summary: Summary) -> Metrics | None:
    """Return the speculation statistics in vLLM's format; None if no round had a draft."""
    if not summary.num_spec_steps:
        return None
    return Metrics(speculative_decoding=SpeculativeDecoding.model_validate(summary, from_attributes=True))


def report_of(summary: Summary) -> SpeculationReport:
    """Return the request's speculation options, and the reasons for rounds without a draft."""
    asked = summary.speculation
    report = SpeculationReport(mode="off", lossy=False, fallbacks={}) if asked.mode == "off" else _drafting(summary)
    if summary.beams is not None:
        report.beam_search = _beam_search(summary.beams)
    return report


def _drafting(summary: Summary) -> SpeculationReport:
    asked = summary.speculation
    report = SpeculationReport(
        mode=asked.mode.value,
        gamma=asked.policy.policy if asked.gamma is None and asked.tree is None else asked.gamma,
        lenience=asked.lenience,
        lossy=asked.lossy,
        fallbacks=summary.fallbacks,
    )
    if summary.drafters:
        report.drafters = {name: _drafter(tally) for name, tally in summary.drafters.items()}
    if summary.speedup.predicted:
        report.detail = SpeculationDetail(
            predicted_speedup=summary.speedup.predicted, measured_speedup=summary.speedup.measured or None
        )
    return report


def _beam_search(report: BeamReport) -> BeamSearchReport:
    return BeamSearchReport(score=report.score, num_steps=report.steps, num_accepted_steps=report.accepted)


def _drafter(tally: Tally) -> DrafterReport:
    return DrafterReport(
        num_spec_steps=tally.rounds,
        num_draft_tokens=tally.drafted,
        num_accepted_draft_tokens=tally.accepted,
        alpha=tally.alpha,
        c=tally.c,
    )


def counts_of(prompt: int, output: int) -> Usage:
    """Return a usage object with token counts only."""
    return Usage(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)


def usage_of(prompts: Sequence[Finished], ended: Sequence[Finished]) -> Usage:
    """Return the token counts of a request.

    Args:
        prompts: first generation of each prompt.
        ended: all generations.
    """
    usage = counts_of(sum(each.prompt_tokens for each in prompts), sum(each.completion_tokens for each in ended))
    usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=sum(each.cached_tokens for each in prompts))
    summary = total([each.summary for each in ended])
    if summary.speculation.prediction:
        accepted, drafted = summary.prediction.accepted, summary.prediction.drafted
        usage.completion_tokens_details = CompletionTokensDetails(
            accepted_prediction_tokens=accepted, rejected_prediction_tokens=drafted - accepted
        )
    return usage

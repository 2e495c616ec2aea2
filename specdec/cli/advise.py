"""`specdec advise`: replicas for a wanted throughput, with the formula, and an honest word on whether drafting pays."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

from specdec.errors import ConfigError
from specdec.rules.sizing import Policy, RoundCosts, Sizing, size
from specdec.serving.prometheus import Prometheus
from specdec.serving.readings import Reading
from specdec.serving.scraper import Scraper


@dataclass(frozen=True, slots=True)
class Given:
    """The numbers of the command line; None where one was not given. Milliseconds."""

    alpha: float | None = None
    gamma: int | None = None
    draft_ms: float | None = None
    verify_ms: float | None = None
    plain_ms: float | None = None
    round_trip_ms: float | None = None
    draft_batch: float | None = None
    verify_batch: float | None = None

    def completed(self, reading: Reading) -> RoundCosts:
        """These numbers, and where they say nothing, those that were read.

        Raises:
            ConfigError: one is not known, or cannot be.
        """
        verify = _needed("--verify-ms", _seconds(self.verify_ms), reading.verify_pass)
        try:
            return RoundCosts(
                alpha=_needed("--alpha", self.alpha, reading.alpha),
                gamma=round(_needed("--gamma", self.gamma, reading.gamma)),
                draft_step=_needed("--draft-ms", _seconds(self.draft_ms), reading.draft_step),
                verify_pass=verify,
                plain_pass=_first(_seconds(self.plain_ms), reading.plain_pass, verify),
                draft_batch=_needed("--draft-batch", self.draft_batch, reading.draft_batch),
                verify_batch=_needed("--verify-batch", self.verify_batch, reading.verify_batch),
                round_trip=_first(_seconds(self.round_trip_ms), reading.round_trip, 0.0),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error


def read(sources: Sequence[str], window: int) -> Reading:
    """What the sources say; nothing without any. URLs that end in /metrics are replicas, another one is a Prometheus.

    Raises:
        ConfigError: both kinds, or more than one Prometheus.
        MetricsUnreadable: nobody answers.
    """
    if not sources:
        return Reading()
    if all(source.endswith("/metrics") for source in sources):
        return Scraper().read(sources)
    if len(sources) > 1:
        raise ConfigError("--from takes one Prometheus, or any number of URLs that end in /metrics")
    return Prometheus(sources[0], window).read()


def policy(verify_busy: float, draft_busy: float, min_speedup: float) -> Policy:
    """The policy of the command line.

    Raises:
        ConfigError: a number that cannot be.
    """
    try:
        return Policy(verify_busy, draft_busy, min_speedup)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def advise(console: Console, tokens_per_second: float, costs: RoundCosts, policy: Policy, as_json: bool) -> None:
    """The command.

    Raises:
        ConfigError: a throughput that cannot be.
    """
    try:
        sizing = size(tokens_per_second, costs, policy)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if as_json:
        report = {
            "tokens_per_second": tokens_per_second,
            "costs": asdict(costs),
            "policy": asdict(policy),
            "sizing": asdict(sizing),
            "best_gamma": costs.best_gamma,
            "verdict": verdict(sizing, costs, policy),
        }
        console.out(json.dumps(report, indent=2), highlight=False)
        return
    for line in (*derivation(tokens_per_second, sizing, costs), verdict(sizing, costs, policy)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def derivation(tokens_per_second: float, sizing: Sizing, costs: RoundCosts) -> Iterator[str]:
    """The numbers, each with the formula it comes from."""
    t_d, t_v, t_p, trip = (f"{value * 1000:.3g} ms" for value in _times(costs))
    yield f"α {costs.alpha:.2f}, γ {costs.gamma}, t_d {t_d}, t_v {t_v}, t_p {t_p}, R {trip}, c = t_d/t_v {costs.c:.3f}"
    yield f"tokens a round   E = (1 - α^(γ+1)) / (1 - α) = {costs.tokens_per_round:.2f}"
    yield f"a session gains  E·t_p / (t_v + γ·t_d + R) = {sizing.speedup:.2f} times plain decoding"
    if sizing.pays:
        yield f"ratio            N_d/N_v = γ·c·(B_v/B_d)·(ρ_v/ρ_d) = {sizing.ratio:.2f}"
    yield f"verifiers        {sizing.verifiers} for {tokens_per_second:g} tokens/s"
    yield f"drafters         {sizing.drafters}"
    yield f"KV for           {sizing.sessions_per_verifier} sessions a verifier, to keep its batches full"


def verdict(sizing: Sizing, costs: RoundCosts, policy: Policy) -> str:
    """Whether drafting pays, in words."""
    if not sizing.pays:
        return _in_vain(sizing, costs, policy)
    plain, ours = sizing.plain_verifiers, sizing.verifiers + sizing.drafters
    words = f"Drafting pays: {ours} replicas in all, against {plain} verifiers with plain decoding."
    if ours > plain:
        words = (
            f"Drafting buys speed, not hardware: each session is {sizing.speedup:.2f} times as fast, but it takes "
            f"{ours} replicas in all, against {plain} verifiers with plain decoding."
        )
    return words + _hint(costs)


def _in_vain(sizing: Sizing, costs: RoundCosts, policy: Policy) -> str:
    plain = f"plain decoding takes {sizing.verifiers} verifiers and no drafter."
    if costs.gamma == 0:
        return f"γ is 0: {plain}"
    return (
        f"Drafting does not pay here: it would give {sizing.speedup:.2f} times the speed of plain decoding, and "
        f"{policy.min_speedup:.2f} is the least worth having. Use γ = 0: {plain}"
    ) + _hint(costs)


def _hint(costs: RoundCosts) -> str:
    best = costs.best_gamma
    return f" By these numbers γ = {best} would be best." if best not in {costs.gamma, 0} else ""


def _times(costs: RoundCosts) -> Sequence[float]:
    return costs.draft_step, costs.verify_pass, costs.plain_pass, costs.round_trip


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _needed(option: str, *values: float | None) -> float:
    known = next((value for value in values if value is not None), None)
    if known is None:
        raise ConfigError(f"{option} is not known: give it, or read it from what runs with --from URL")
    return known


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)

"""`specdec advise`: replicas for a throughput with the formulas, whether drafting pays, and where to place drafters."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console

from specdec.errors import ConfigError
from specdec.planning.placement import Placement, placement
from specdec.planning.sizing import Policy, RoundCosts, Sizing, size
from specdec.serving.telemetry.readers import Prometheus, Scraper
from specdec.serving.telemetry.snapshot import MetricsSnapshot

_OPTIONS = {
    "verify_pass": "--verify-ms",
    "alpha": "--alpha",
    "gamma": "--gamma",
    "draft_step": "--draft-ms",
    "draft_batch": "--draft-batch",
    "verify_batch": "--verify-batch",
}
"""Option for each number of a snapshot that a sizing requires."""


def costs_of(numbers: MetricsSnapshot) -> RoundCosts:
    """The costs of a round, from numbers that were given or read.

    Raises:
        ConfigError: a number is neither given nor read.
        ValueError: a number is out of range.
    """
    costs = numbers.costs
    if costs is None:
        unknown = next(option for name, option in _OPTIONS.items() if getattr(numbers, name) is None)
        raise ConfigError(f"{unknown} is not known: give it, or read it from what runs with --from URL")
    return costs


def read(sources: Sequence[str], window: int) -> MetricsSnapshot:
    """Read the numbers from replicas, whose URLs end in /metrics, or from one Prometheus; empty without sources.

    Raises:
        ConfigError: sources of both kinds, or more than one Prometheus.
        MetricsUnreadable: no source answers.
    """
    if not sources:
        return MetricsSnapshot()
    if all(source.endswith("/metrics") for source in sources):
        return Scraper().read(sources)
    if len(sources) > 1:
        raise ConfigError("--from takes one Prometheus, or any number of URLs that end in /metrics")
    return Prometheus(sources[0], window).read()


def advise(
    console: Console,
    tokens_per_second: float,
    numbers: MetricsSnapshot,
    busy: tuple[float, ...],
    as_json: bool,
    drafter_cost: float | None = None,
    draft_operations: float = 0.0,
) -> None:
    """Run the command: print the sizing, as one JSON document if `as_json` is set.

    Args:
        busy: the fields of `Policy`.
        drafter_cost: cost of a drafter, in verifiers; None if unknown.
        draft_operations: ĉ, arithmetic operations of a draft step divided by those of a target step, per token.

    Raises:
        ConfigError: a number is unknown or out of range.
    """
    try:
        costs = costs_of(numbers)
        policy = Policy(*busy)
        sizing = size(tokens_per_second, costs, policy)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    apart = placement(costs, policy) if sizing.pays else None
    where = None if apart is None else placed(apart, drafter_cost)
    if as_json:
        report = {
            "tokens_per_second": tokens_per_second,
            "costs": asdict(costs),
            "policy": asdict(policy),
            "sizing": asdict(sizing),
            "best_gamma": costs.best_gamma,
            "least_speedup": costs.least_speedup,
            "operations": costs.operations(draft_operations),
            "verdict": verdict(sizing, costs, policy),
            "placement": None if apart is None else {**asdict(apart), "verdict": where},
        }
        console.out(json.dumps(report, indent=2), highlight=False)
        return
    said = (*derivation(tokens_per_second, sizing, costs, draft_operations), verdict(sizing, costs, policy), where)
    for line in filter(None, said):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def derivation(tokens_per_second: float, sizing: Sizing, costs: RoundCosts, draft_operations: float) -> Iterator[str]:
    """Lines with the numbers, each with its formula."""
    times = (costs.draft_step, costs.verify_pass, costs.plain_pass, costs.round_trip)
    t_d, t_v, t_p, trip = (f"{value * 1000:.3g} ms" for value in times)
    yield f"α {costs.alpha:.2f}, γ {costs.gamma}, t_d {t_d}, t_v {t_v}, t_p {t_p}, R {trip}, c = t_d/t_v {costs.c:.3f}"
    yield f"tokens a round   E = (1 - α^(γ+1)) / (1 - α) = {costs.tokens_per_round:.2f}"
    yield f"a session gains  E·t_p / (t_v + γ·t_d + R) = {sizing.speedup:.2f} times plain decoding"
    least = costs.least_speedup
    bound = "α ≤ t_d/t_p: no γ need gain" if least is None else f"α > t_d/t_p: (1 + α) / (1 + t_d/t_p) = {least:.2f}"
    yield f"best γ, at least {bound}, without network (Corollary 3.9)"
    c_ops, operations = draft_operations, costs.operations(draft_operations)
    yield f"operations       (γ·ĉ + γ + 1) / E = {operations:.2f} times plain decoding, ĉ {c_ops:g} (Theorem 3.11)"
    if sizing.pays:
        yield f"ratio            N_d/N_v = γ·c·(B_v/B_d)·(ρ_v/ρ_d) = {sizing.ratio:.2f}"
    yield f"verifiers        {sizing.verifiers} for {tokens_per_second:g} tokens/s"
    yield f"drafters         {sizing.drafters}"
    yield f"KV for           {sizing.sessions_per_verifier} sessions a verifier, to keep its batches full"


def verdict(sizing: Sizing, costs: RoundCosts, policy: Policy) -> str:
    """A sentence on whether drafting pays."""
    if not sizing.pays:
        return _does_not_pay(sizing, costs, policy)
    plain, ours = sizing.plain_verifiers, sizing.verifiers + sizing.drafters
    words = f"Drafting pays: {ours} replicas in all, against {plain} verifiers with plain decoding."
    if ours > plain:
        words = (
            f"Drafting buys speed, not hardware: each session is {sizing.speedup:.2f} times as fast, but it takes "
            f"{ours} replicas in all, against {plain} verifiers with plain decoding."
        )
    return words + _hint(costs)


def placed(apart: Placement, drafter_cost: float | None) -> str:
    """Sentences on whether drafters should have their own accelerators or share the target's."""
    words = (
        f"Drafters apart let a full verifier hold up to 1 + γ·t_d/t_v = {apart.full:.2f} times the clients that it "
        f"holds if it drafts itself, in turns; few clients have (t_v + γ·t_d) / (t_v + γ·t_d + R) = {apart.alone:.2f} "
        "of their speed in turns, where drafting ahead does not hide the round trip."
    )
    if drafter_cost is None:
        return (
            f"{words} For the same money apart holds more while a drafter costs under {apart.break_even:.2f} verifiers."
        )
    for_money = apart.full_for_money(drafter_cost)
    winner = "apart wins where verifiers are full, and co-location where they are not."
    if for_money <= 1.0:
        winner = "co-location would win, full or not."
    return f"{words} For the same money apart holds {for_money:.2f} times the clients: {winner}"


def _does_not_pay(sizing: Sizing, costs: RoundCosts, policy: Policy) -> str:
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

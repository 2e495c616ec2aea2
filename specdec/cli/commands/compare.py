"""`specdec compare`: run the same prompt alternately with and without drafts, and report which is faster."""

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from specdec.cli.client import GatewayClient
from specdec.client.collect import collect
from specdec.client.connection import GatewayConnection
from specdec.client.events import GenerationResult, PromptRequest
from specdec.rules.speculation import Mode
from specdec.wire.generation import Fallback

Generate = Callable[[PromptRequest], GenerationResult]

_HARDLY = 1.05
"""Tokens per round up to which a difference in speed is not attributed to drafts."""


@dataclass(frozen=True, slots=True)
class Side:
    """Statistics of the runs with drafts, or without: medians of the runs, except for the share of accepted drafts."""

    tokens_per_second: float
    """Output tokens per second after the first tokens."""
    tokens_per_round: float
    """Output tokens per round."""
    first_token_seconds: float
    """Seconds to the first token."""
    accepted_share: float | None
    """Accepted share of the draft tokens of all runs together; None without drafts."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Plain and speculative runs of the same request; runs at the same index ran one after the other."""

    request: PromptRequest
    plain: tuple[GenerationResult, ...]
    speculative: tuple[GenerationResult, ...]

    @property
    def identical(self) -> bool:
        """Whether every run gave the same tokens."""
        return len({tuple(token.id for token in result.tokens) for result in (*self.plain, *self.speculative)}) == 1

    @property
    def lossy(self) -> bool:
        """Whether the distribution of the speculative runs may differ from the plain ones."""
        return any(result.finished.lossy for result in self.speculative)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Speed with drafts divided by speed without, for each pair of runs that was long enough to be timed."""
        pairs = zip(self.plain, self.speculative, strict=True)
        return tuple(drafted.decode_rate / plain.decode_rate for plain, drafted in pairs if plain.decode_rate)

    @property
    def speedup(self) -> float:
        """Median of the ratios; 1 if no run was long enough to be timed."""
        return median(self.ratios or (1.0,))

    @property
    def difference(self) -> Literal["faster", "slower", "none"]:
        """Effect of drafts on speed; "none" unless every pair of runs agrees and drafts were accepted."""
        if side(self.speculative).accepted_share is None or not self.ratios:
            return "none"
        if min(self.ratios) > 1.0 and side(self.speculative).tokens_per_round > _HARDLY:
            return "faster"
        return "slower" if max(self.ratios) < 1.0 else "none"

    def report(self) -> dict[str, Any]:
        """The JSON output of the comparison."""
        return {
            "prompt": self.request.prompt,
            "seed": self.request.seed,
            "runs": len(self.plain),
            "plain": asdict(side(self.plain)),
            "speculative": asdict(side(self.speculative)),
            "identical": self.identical,
            "lossy": self.lossy,
            "speedup": self.speedup,
            "speedup_range": [min(self.ratios, default=1.0), max(self.ratios, default=1.0)],
            "difference": self.difference,
            "verdict": verdict(self),
        }


def side(results: Sequence[GenerationResult]) -> Side:
    """Statistics of runs that all had drafts, or all had none."""
    drafted = sum(result.finished.drafted for result in results)
    accepted = sum(result.finished.accepted for result in results)
    return Side(
        median(result.decode_rate for result in results),
        median(result.tokens_per_round for result in results),
        median(result.first_token for result in results),
        accepted / drafted if drafted else None,
    )


def measure(generate: Generate, request: PromptRequest, runs: int) -> Comparison:
    """Run both requests once to warm up, then alternately, so that a slow moment of the machine affects both.

    Each has its own `cache_salt`, so that neither reuses the other's entries in a prefix cache.
    """
    off, drafted = both_ways(request)
    for warm_up in (off, drafted):
        generate(warm_up)
    pairs = [(generate(off), generate(drafted)) for _ in range(runs)]
    plain, speculative = zip(*pairs, strict=True)
    return Comparison(drafted, plain, speculative)


def both_ways(request: PromptRequest) -> tuple[PromptRequest, PromptRequest]:
    """The request without drafts and with drafts, with the same seed and separate prefix caches."""
    request = request if request.seed is not None else replace(request, seed=secrets.randbits(31))
    salt = secrets.token_hex(8)
    off, drafted = (replace(request, cache_salt=f"compare-{salt}-{way}") for way in ("off", "on"))
    return _without_drafts(off), drafted


def _without_drafts(request: PromptRequest) -> PromptRequest:
    """Return a copy of the request without drafts.

    In coupled mode the tokens depend on the noise alone, so the mode is kept and only the draft length is set to 0.
    """
    if request.mode is Mode.COUPLED:
        return replace(request, gamma=0)
    return replace(request, mode=Mode.OFF, gamma=None, lenience=None)


def compare(console: Console, connection: GatewayConnection, request: PromptRequest, runs: int, as_json: bool) -> None:
    """Run the command: print the comparison, as one JSON document if `as_json` is set."""
    with closing(GatewayClient(connection)) as gateway:
        found = measure(lambda each: collect(gateway.stream(each)), request, runs)
    if as_json:
        console.out(json.dumps(found.report(), indent=2), highlight=False)
        return
    console.print(_table(found))
    for line in (verdict(found), identity(found)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict(found: Comparison) -> str:
    """A sentence on the speed-up, with its range over the runs."""
    match found.difference:
        case "faster":
            return f"Drafts make it {found.speedup:.2f} times as fast here ({_range(found)})."
        case "slower":
            return f"Drafts make it slower here: {found.speedup:.2f} times the speed without ({_range(found)})."
        case _:
            return "; ".join((f"No difference: {_range(found)}", *_why_no_drafts(found))) + "."


def _range(found: Comparison) -> str:
    runs = len(found.ratios)
    if not runs:
        return "too few tokens to time"
    if runs == 1:
        return f"{found.speedup:.2f} in one run"
    return f"{min(found.ratios):.2f} to {max(found.ratios):.2f} in {runs} runs"


_REASONS = {
    Fallback.NOT_WORTH_IT.value: "the server expects no gain from drafts here (--gamma N makes it draft)",
    Fallback.FIRST_ROUND.value: "the drafter was still reading the prompt",
    Fallback.NO_MATCH.value: "nothing that drafts had a continuation",
    Fallback.LATE.value: "drafts came too late",
    Fallback.OVERLOADED.value: "the drafter had no room",
    Fallback.UNAVAILABLE.value: "no drafter answers",
    Fallback.TOKENIZER.value: "the drafter has another tokenizer",
}


def _why_no_drafts(found: Comparison) -> Iterator[str]:
    """Reason why the speculative runs had no drafts or hardly any; empty if they had drafts."""
    numbers = side(found.speculative)
    if numbers.accepted_share is not None and numbers.tokens_per_round > _HARDLY:
        return
    counts: dict[str, int] = {}
    for result in found.speculative:
        for reason, count in result.finished.fallbacks.items():
            counts[reason] = counts.get(reason, 0) + count
    used = "no drafts were used" if numbers.accepted_share is None else "hardly any draft was accepted"
    if not counts:
        yield used
        return
    reason = max(counts, key=lambda each: counts[each])
    yield f"{used}, because {_REASONS.get(reason, reason)}"


def identity(found: Comparison) -> str:
    """A sentence on whether the tokens agree, and whether they should."""
    if found.identical:
        return "The tokens are identical."
    if found.lossy:
        return "The tokens differ, as they may: lenience is lossy, its distribution is not the target's."
    if found.request.temperature == 0 or found.request.mode is Mode.COUPLED:
        return "The tokens differ, though this mode should give the same: rounding (try float32), or a bug."
    return "The tokens differ, as they may: same distribution, other draws. --mode coupled makes them agree."


def _table(found: Comparison) -> Table:
    table = Table("", "tokens/s", "first token", "tokens/round", "accepted")
    for name, results in (("without drafts", found.plain), ("with drafts", found.speculative)):
        numbers = side(results)
        accepted = "-" if numbers.accepted_share is None else f"{numbers.accepted_share:.0%}"
        first = f"{numbers.first_token_seconds * 1000:.0f} ms"
        table.add_row(name, f"{numbers.tokens_per_second:.1f}", first, f"{numbers.tokens_per_round:.2f}", accepted)
    return table

"""`specdec compare`: the same prompt with and without speculation, and an honest word on which was faster."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from specdec.cli.client import Gateway
from specdec.cli.events import Outcome, Request
from specdec.cli.run import collect
from specdec.rules.params import Mode

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one way to decode; each number is their median."""

    outcomes: tuple[Outcome, ...]

    @property
    def tokens_per_second(self) -> float:
        """Over the whole time of a run."""
        return median(outcome.tokens_per_second for outcome in self.outcomes)

    @property
    def tokens_per_round(self) -> float:
        """Output tokens per target pass."""
        return median(outcome.tokens_per_round for outcome in self.outcomes)

    @property
    def first_token(self) -> float:
        """Seconds to the first token."""
        return median(outcome.first_token for outcome in self.outcomes)

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted, all runs together; None without drafts."""
        drafted = sum(outcome.finished.drafted for outcome in self.outcomes)
        return sum(outcome.finished.accepted for outcome in self.outcomes) / drafted if drafted else None

    def report(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_round": self.tokens_per_round,
            "first_token_seconds": self.first_token,
            "acceptance": self.acceptance,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both ways side by side."""

    request: Request
    plain: Side
    speculative: Side

    @property
    def identical(self) -> bool:
        """Whether every run gave the same tokens."""
        runs = (*self.plain.outcomes, *self.speculative.outcomes)
        return len({tuple(token.id for token in outcome.tokens) for outcome in runs}) == 1

    @property
    def lossy(self) -> bool:
        """Whether the speculative runs may differ from the plain ones in distribution."""
        return any(outcome.finished.lossy for outcome in self.speculative.outcomes)

    @property
    def speedup(self) -> float:
        """Tokens per second with speculation over those without."""
        return self.speculative.tokens_per_second / self.plain.tokens_per_second

    def report(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "prompt": self.request.prompt,
            "seed": self.request.seed,
            "runs": len(self.plain.outcomes),
            "plain": self.plain.report(),
            "speculative": self.speculative.report(),
            "identical": self.identical,
            "lossy": self.lossy,
            "speedup": self.speedup,
            "verdict": verdict(self),
        }


def measure(generate: Callable[[Request], Outcome], request: Request, runs: int) -> Comparison:
    """Warm up, then run both ways in turn, so that a slow moment of the machine meets both."""
    request = request if request.seed is not None else replace(request, seed=secrets.randbits(31))
    off = _without_drafts(request)
    for warm_up in (off, request):
        generate(replace(warm_up, max_tokens=_WARM_UP_TOKENS))
    pairs = [(generate(off), generate(request)) for _ in range(runs)]
    return Comparison(
        request, Side(tuple(plain for plain, _ in pairs)), Side(tuple(speculative for _, speculative in pairs))
    )


def _without_drafts(request: Request) -> Request:
    """Plain decoding; of the coupled mode, the one with the same noise, since its tokens depend on that alone."""
    if request.mode is Mode.COUPLED:
        return replace(request, gamma=0)
    return replace(request, mode=Mode.OFF, gamma=None, lenience=None)


def compare(console: Console, address: str, request: Request, runs: int, as_json: bool) -> None:
    """The command.

    Raises:
        SpecdecError: see Gateway.stream.
    """
    with Gateway(address) as gateway:
        found = measure(lambda asked: collect(gateway.stream(asked)), request, runs)
    if as_json:
        console.out(json.dumps(found.report(), indent=2), highlight=False)
        return
    console.print(_table(found))
    for line in (verdict(found), identity(found)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict(found: Comparison) -> str:
    """The speed-up in words."""
    if found.speculative.acceptance is None:
        return _nothing_drafted(found.speculative)
    if found.speedup >= 1:
        return f"Speculation is {found.speedup:.2f} times as fast here."
    return f"Speculation is slower here: {found.speedup:.2f} times the speed of plain decoding."


def _nothing_drafted(side: Side) -> str:
    reasons = {reason for outcome in side.outcomes for reason in outcome.finished.fallbacks}
    if reasons:
        return f"Nothing was drafted ({', '.join(sorted(reasons))}), so there is nothing to compare."
    return "The server drafted nothing, for it expects no gain from drafts here; --gamma N makes it draft."


def identity(found: Comparison) -> str:
    """Whether the tokens agree, and whether they should."""
    if found.identical:
        return "The tokens are identical."
    if found.lossy:
        return "The tokens differ, as they may: lenience is lossy, its distribution is not the target's."
    if found.request.temperature == 0 or found.request.mode is Mode.COUPLED:
        return "The tokens differ, though this mode should give the same: rounding (try float32), or a bug."
    return "The tokens differ, as they may: same distribution, other draws. --mode coupled makes them agree."


def _table(found: Comparison) -> Table:
    table = Table("", "tokens/s", "tokens/round", "first token", "accepted")
    for name, side in _sides(found):
        accepted = "-" if side.acceptance is None else f"{side.acceptance:.0%}"
        first = f"{side.first_token * 1000:.0f} ms"
        table.add_row(name, f"{side.tokens_per_second:.1f}", f"{side.tokens_per_round:.2f}", first, accepted)
    return table


def _sides(found: Comparison) -> Sequence[tuple[str, Side]]:
    return (("plain", found.plain), ("speculative", found.speculative))

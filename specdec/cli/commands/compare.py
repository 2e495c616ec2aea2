"""`specdec compare`: runs the same prompt with and without speculation, and says which was faster."""

import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from specdec.cli.client import GatewayClient
from specdec.client.collect import collect
from specdec.client.connection import GatewayConnection
from specdec.client.events import GenerationResult, PromptRequest
from specdec.rules.speculation import Mode
from specdec.wire.generation import Fallback

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Side:
    """The runs of one way to decode, in numbers: medians of the runs, but for the acceptance."""

    tokens_per_second: float
    """Output tokens per second, over the whole time of a run."""
    tokens_per_round: float
    """Output tokens per round."""
    first_token_seconds: float
    """Seconds to the first token."""
    acceptance: float | None
    """Accepted draft tokens over all drafted ones; None without drafts."""
    """Share of the draft tokens that were accepted, all runs together; None without drafts."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Plain and speculative runs of the same request."""

    request: PromptRequest
    plain: tuple[GenerationResult, ...]
    speculative: tuple[GenerationResult, ...]

    @property
    def identical(self) -> bool:
        """Whether every run gave the same tokens."""
        return len({tuple(token.id for token in result.tokens) for result in (*self.plain, *self.speculative)}) == 1

    @property
    def lossy(self) -> bool:
        """Whether the speculative runs may differ from the plain ones in distribution."""
        return any(result.finished.lossy for result in self.speculative)

    @property
    def speedup(self) -> float:
        """Tokens per second with speculation over those without."""
        return side(self.speculative).tokens_per_second / side(self.plain).tokens_per_second

    def report(self) -> dict[str, Any]:
        """The numbers as they are printed in JSON."""
        return {
            "prompt": self.request.prompt,
            "seed": self.request.seed,
            "runs": len(self.plain),
            "plain": asdict(side(self.plain)),
            "speculative": asdict(side(self.speculative)),
            "identical": self.identical,
            "lossy": self.lossy,
            "speedup": self.speedup,
            "verdict": verdict(self),
        }


def side(results: Sequence[GenerationResult]) -> Side:
    drafted = sum(result.finished.drafted for result in results)
    accepted = sum(result.finished.accepted for result in results)
    return Side(
        median(result.tokens_per_second for result in results),
        median(result.tokens_per_round for result in results),
        median(result.first_token for result in results),
        accepted / drafted if drafted else None,
    )


def measure(generate: Callable[[PromptRequest], GenerationResult], request: PromptRequest, runs: int) -> Comparison:
    """Warm up, then run both ways in turn, so that a slow moment of the machine affects both."""
    request = request if request.seed is not None else replace(request, seed=secrets.randbits(31))
    off = _without_drafts(request)
    for warm_up in (off, request):
        generate(replace(warm_up, max_tokens=_WARM_UP_TOKENS))
    pairs = [(generate(off), generate(request)) for _ in range(runs)]
    plain, speculative = zip(*pairs, strict=True)
    return Comparison(request, plain, speculative)


def _without_drafts(request: PromptRequest) -> PromptRequest:
    """The same request with plain decoding.

    In coupled mode the tokens depend on the noise alone, so the mode is kept and only the draft length is set to 0.
    """
    if request.mode is Mode.COUPLED:
        return replace(request, gamma=0)
    return replace(request, mode=Mode.OFF, gamma=None, lenience=None)


def compare(console: Console, connection: GatewayConnection, request: PromptRequest, runs: int, as_json: bool) -> None:
    """Run the command: print the comparison, as one JSON document when `as_json` is set."""
    with closing(GatewayClient(connection)) as gateway:
        found = measure(lambda each: collect(gateway.stream(each)), request, runs)
    if as_json:
        console.out(json.dumps(found.report(), indent=2), highlight=False)
        return
    console.print(_table(found))
    for line in (verdict(found), identity(found)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict(found: Comparison) -> str:
    """A sentence on the speed-up."""
    if side(found.speculative).acceptance is None:
        return _nothing_drafted(found.speculative)
    if found.speedup >= 1:
        return f"Speculation is {found.speedup:.2f} times as fast here."
    return f"Speculation is slower here: {found.speedup:.2f} times the speed of plain decoding."


_BY_CHOICE = {Fallback.NOT_WORTH_IT.value, Fallback.FIRST_ROUND.value}
"""Reasons for which nothing has to be wrong."""


def _nothing_drafted(results: Sequence[GenerationResult]) -> str:
    reasons = {reason for result in results for reason in result.finished.fallbacks} - _BY_CHOICE
    if reasons:
        return f"Nothing was drafted ({', '.join(sorted(reasons))}), so there is nothing to compare."
    return "The server drafted nothing, for it expects no gain from drafts here; --gamma N makes it draft."


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
    table = Table("", "tokens/s", "tokens/round", "first token", "accepted")
    for name, results in (("plain", found.plain), ("speculative", found.speculative)):
        numbers = side(results)
        accepted = "-" if numbers.acceptance is None else f"{numbers.acceptance:.0%}"
        first = f"{numbers.first_token_seconds * 1000:.0f} ms"
        table.add_row(name, f"{numbers.tokens_per_second:.1f}", f"{numbers.tokens_per_round:.2f}", first, accepted)
    return table

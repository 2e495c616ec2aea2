"""`python -m benchmarks.simulation`: run every scenario, and write docs/scaling.png and docs/placement.png."""

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.simulation.plot import draw, draw_regions
from benchmarks.simulation.regions import regions
from benchmarks.simulation.scenarios import FULL, Point, knee, losses, scaling, where_it_breaks
from benchmarks.simulation.world import World
from specdec.planning.sizing import drafters_per_verifier

DOCS = Path(__file__).parents[2] / "docs"
RATIOS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2]
CHEAP, DEAR = 0.1, (0.5, 0.8)
"""Costs of a drafter, in verifiers."""
SPARE = 2.0
"""Number of sessions relative to full verifiers, for the last curve of the knee."""


def main() -> int:
    """Run, draw, and print the results."""
    parser = argparse.ArgumentParser(description="Simulate drafters, verifiers and gateways.")
    parser.add_argument("--out", type=Path, default=DOCS / "scaling.png")
    parser.add_argument("--quick", action="store_true", help="Up to 1,000 sessions.")
    arguments = parser.parse_args()
    world, began = World(), time.perf_counter()
    place(world, arguments.out.with_name("placement.png"))
    ratio = drafters_per_verifier(world.costs(), FULL)
    sizes = [10, 100, 1_000] if arguments.quick else [10, 100, 1_000, 10_000]
    knees = {f"{size:,} sessions": knee(world, size, RATIOS, 3.0) for size in sizes}
    knees["1,000 sessions, twice what fills"] = knee(world, 1_000, RATIOS, 3.0, spare=SPARE)
    bent = where_it_breaks(world, 3.0)
    stories = {"losses": losses(world), "scaling": scaling(world)}
    draw(arguments.out, knees, bent, stories, ratio)
    for name, points in (knees | bent).items():
        _write(name, points)
    sys.stdout.write(f"{arguments.out} after {time.perf_counter() - began:.0f} s\n")
    return 0


def place(world: World, out: Path) -> None:
    """Draw the regions in which separate drafters win, and those in which drafting in turns wins."""
    dear = {f"the line where a drafter costs {cost:g} of a verifier": regions(world, cost) for cost in DEAR}
    draw_regions(out, regions(world, CHEAP), dear)


def _write(name: str, points: Iterable[Point]) -> None:
    sys.stdout.write(f"{name}\n")
    for point in points:
        share = point.tokens_per_second / point.predicted
        sys.stdout.write(
            f"  S {point.sessions:6} N_v {point.verifiers:4} N_d {point.drafters:4} ratio {point.ratio:5.2f}"
            f"  {point.tokens_per_second:9.0f} tokens/s, {share:5.1%} of the closed form,"
            f" starved {point.starvation:.0%}\n"
        )


if __name__ == "__main__":
    sys.exit(main())

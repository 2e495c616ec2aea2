"""How much is measured: which pair, and how long and often."""

from dataclasses import dataclass

from benchmarks.pair import Pair


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of one run of the benchmarks."""

    pair: Pair
    prompt: int = 64
    """Tokens of a prompt."""
    tokens: int = 160
    """Tokens of an output."""
    asks: int = 4
    """Different prompts."""
    repeats: int = 3
    """How often each peer answers each prompt."""
    sessions: tuple[int, ...] = (1, 4, 16, 32)
    gammas: tuple[int, ...] = (1, 2, 3, 5, 7)
    contexts: tuple[int, ...] = (64, 256, 768)


def quick(pair: Pair) -> Scale:
    """Seconds in place of minutes: shows that it runs, and nothing else."""
    return Scale(pair, 8, 8, 1, 1, sessions=(1, 2), gammas=(1, 2), contexts=(8, 16))

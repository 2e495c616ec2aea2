"""A permutation test: do two sets of short token sequences come from one distribution?"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain, zip_longest

Sequences = Sequence[tuple[str, ...]]


def p_value(first: Sequences, second: Sequences, permutations: int, seed: int = 0) -> float:
    """The chance, if both come from one distribution, that they differ at least as much as they do.

    Every sequence is drawn by itself, so under one distribution any division of them into two sets is as likely as the
    given one. So the p-value is right for any sizes and any vocabulary: at most α of all tests have p ≤ α. The
    least p-value is 1 / (permutations + 1).

    Args:
        permutations: number of random divisions that the given one is compared with.
    """
    pool, count = _cells([*first, *second]), len(first)
    whole = Counter(chain.from_iterable(pool))
    terms = [n * math.log(n) if n else 0.0 for n in range(len(pool) + 1)]

    def difference() -> float:
        """Half the G statistic of the tokens at each position, summed over the positions, up to a constant."""
        mine = Counter(chain.from_iterable(pool[:count]))
        return math.fsum(terms[mine[cell]] + terms[n - mine[cell]] for cell, n in whole.items())

    given, dice, as_far = difference(), random.Random(seed), 0
    for _ in range(permutations):
        dice.shuffle(pool)
        as_far += difference() >= given
    return (as_far + 1) / (permutations + 1)


def _cells(sequences: Sequences) -> list[tuple[int, ...]]:
    """For each sequence a number for the token at each position; a sequence that ended has a number for that too."""
    numbers: dict[tuple[int, str | None], int] = {}
    columns = [
        [numbers.setdefault((at, token), len(numbers)) for token in column]
        for at, column in enumerate(zip_longest(*sequences))
    ]
    return list(zip(*columns, strict=True))

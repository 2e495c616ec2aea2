"""Figures published by Leviathan et al. (arXiv 2211.17192), for comparison with ours."""

from dataclasses import dataclass

OPERATIONS = (
    (0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86),
)  # fmt: skip
"""Table 1: α, γ, factor of operations, factor of speed."""


@dataclass(frozen=True, slots=True)
class Walltime:
    """A row of Tables 2 and 4."""

    task: str
    drafter: str
    temperature: int
    gamma: int
    alpha: float
    c: float
    expected: float
    measured: float


WALLTIME = (
    Walltime("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    Walltime("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    Walltime("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    Walltime("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    Walltime("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    Walltime("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    Walltime("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    Walltime("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    Walltime("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    Walltime("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    Walltime("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    Walltime("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)
"""Tables 2 and 4, for T5-XXL (11B) on a TPU-v4."""

ALPHA = {
    ("unigram", 0): "0.03–0.13", ("bigram", 0): "0.05–0.23", ("model", 0): "0.61–0.88",
    ("unigram", 1): "0.03–0.08", ("bigram", 1): "0.05–0.19", ("model", 1): "0.53–0.89",
}  # fmt: skip
"""Table 3: the range over all targets. `model` is any smaller model."""

LENIENCES = (1.0, 0.5, 0.3, 0.1)
LENIENT = {
    "unigram": (0.07, 0.10, 0.11, 0.16),
    "bigram": (0.19, 0.23, 0.25, 0.32),
    "model": (0.62, 0.71, 0.76, 0.84),
}
"""Table 5: α at each lenience, T5-XXL on EnDe at temperature 1. `model` is T5-small."""
LENIENT_SPEED = (2.5, 3.1, 3.6, 5.0)
"""A.5: improvement of T5-small at those leniences, with c = 0.015."""
LENIENT_GREEDY = ((0.75, 3.3), (0.75, 3.3), (0.80, 3.9), (0.87, 4.9))
"""A.5: α and improvement at temperature 0, with c = 0.015 and γ = 8."""
LENIENT_C = 0.015

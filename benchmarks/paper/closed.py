"""Results of formulas alone: Tables 1 and 4, Figures 2 to 4, and figures in the text, each recomputed."""

from collections.abc import Callable, Iterator, Sequence

from benchmarks.paper import published
from benchmarks.reports.results import Chart
from benchmarks.theory import expected_tokens, operations_factor, speedup
from specdec.planning.gamma import best_gamma

ALPHAS = [step / 50 for step in range(50)]
_MOST = 64
"""Longest draft considered for the best γ."""


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    ruled = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in ruled)


def beside(ours: float, theirs: float, digits: int = 2) -> list[str]:
    """Return our value, the paper's, and whether they are equal up to rounding."""
    same = abs(ours - theirs) <= 0.51 * 10**-digits
    return [f"{ours:.{digits}f}", f"{theirs:.{digits}f}", "yes" if same else f"{ours - theirs:+.{digits}f}"]


def operations() -> str:
    """Return Table 1."""
    rows = []
    for alpha, gamma, factor, speed in published.OPERATIONS:
        ours = operations_factor(alpha, gamma, 0.0), expected_tokens(alpha, gamma)
        rows.append([f"{alpha:g}", str(gamma), *beside(ours[0], factor), *beside(ours[1], speed)])
    return markdown(("α", "γ", "operations", "paper", "same", "speed", "paper", "same"), rows)


def predictions() -> str:
    """Return Table 4's expected factors by Theorem 3.8, from its α, γ and c."""
    rows = []
    for each in published.WALLTIME:
        ours = speedup(each.alpha, each.gamma, each.c)
        verdict = beside(ours, each.expected, digits=1)
        best = best_gamma(each.alpha, each.c, limit=_MOST)
        inputs = [each.task, each.drafter, str(each.temperature), str(each.gamma), f"{each.alpha:g}", f"{each.c:g}"]
        rows.append([*inputs, f"{ours:.2f}", *verdict[1:], f"{each.measured:g}", str(best)])
    head = ("task", "drafter", "T", "γ", "α", "c", "by Theorem 3.8", "paper", "same", "paper, measured", "best γ")
    return markdown(head, rows)


def lenient_speeds() -> str:
    """Return the improvement factors of A.5, at the best γ for temperature 1 and at γ = 8 for temperature 0."""
    rows = []
    for ell, alpha, speed in zip(published.LENIENCES, published.LENIENT["model"], published.LENIENT_SPEED, strict=True):
        gamma = best_gamma(alpha, published.LENIENT_C, limit=_MOST)
        ours = speedup(alpha, gamma, published.LENIENT_C)
        rows.append(["1", f"{ell:g}", f"{alpha:g}", f"{gamma}, the best", *beside(ours, speed, digits=1)])
    for ell, (alpha, speed) in zip(published.LENIENCES, published.LENIENT_GREEDY, strict=True):
        rows.append(["0", f"{ell:g}", f"{alpha:g}", "8", *beside(speedup(alpha, 8, published.LENIENT_C), speed, 1)])
    return markdown(("T", "ℓ", "α", "γ", "by Theorem 3.8", "paper", "same"), rows)


def text_figures() -> str:
    """Return the figures in the paper's text."""
    oracle = max(_oracle_gain(alpha, c) for alpha in ALPHAS for c in (0.01, 0.02, 0.05, 0.1))
    bigram = [*beside(speedup(0.2, 3, 0.0), 1.25)]
    rows = [
        ["§3.6: a bigram model, α = 0.2, γ = 3, c = 0", *bigram],
        [
            "§3.5: most an oracle for γ wins over a fixed one, c ≤ 0.1",
            f"{oracle:.2f}",
            "~1.6",
            beside(oracle, 1.6, 1)[2],
        ],
    ]
    return markdown(("what", "ours", "paper", "same"), rows)


def _oracle_gain(alpha: float, c: float) -> float:
    """Return the speed-up of drafting exactly the accepted tokens: 1 / (1 - α) tokens for α / (1 - α) drafts."""
    perfect = (1 / (1 - alpha)) / (1 + c * alpha / (1 - alpha))
    return perfect / speedup(alpha, best_gamma(alpha, c, limit=_MOST), c)


def curves() -> Iterator[Chart]:
    """Yield Figures 2, 3 and 4."""
    yield Chart("figure-2", "α", "tokens a round", _family((1, 3, 5, 7, 10), expected_tokens))
    costs = (0.01, 0.02, 0.05, 0.1)
    best = {
        f"c = {c:g}": [(alpha, float(best_gamma(alpha, c, limit=_MOST))) for alpha in ALPHAS if alpha <= 0.94]
        for c in costs
    }
    yield Chart("figure-3", "α", "best γ", best)
    yield Chart("figure-4-speed", "α", "speed, c = 0", _family((3, 5, 7, 10), lambda a, g: speedup(a, g, 0.0)))
    yield Chart("figure-4-operations", "α", "operations, ĉ = 0", _family((3, 5, 7, 10), _operations))


def _operations(alpha: float, gamma: int) -> float:
    return operations_factor(alpha, gamma, 0.0)


def _family(gammas: Sequence[int], of: Callable[[float, int], float]) -> dict[str, list[tuple[float, float]]]:
    return {f"γ = {gamma}": [(alpha, of(alpha, gamma)) for alpha in ALPHAS] for gamma in gammas}

"""Worked examples of the project's other source documents, run on this code, with their errors."""

import math
from collections.abc import Sequence

import torch

from benchmarks.paper.closed import beside, markdown
from benchmarks.theory import expected_tokens
from specdec.rules.draft import certain
from specdec.rules.speculation import Mode
from specdec.rules.verification import verify
from specdec.sources.ngram import Ngram

_OVERHEAD = 1.3
"""Cost of a pass of five tokens in the n-gram document, in passes of one."""
_DEPTH = 4
_NGRAM = ((0.5, 0.94), (0.7, 2.05), (0.9, 3.28))
"""α, and the expected accepted drafts of four in the n-gram document."""
_EGAG = (1, 8, 0.5)
"""γ_min, γ_max and the smoothing of the trace."""
_LAWS = ((1.0, 0.0, 0.0, 0.0), (0.9, 0.1, 0.0, 0.0), (0.7, 0.1, 0.1, 0.1), (0.25,) * 4, (0.4, 0.3, 0.2, 0.1))
P, Q = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5)


def accepted_drafts() -> str:
    """Return the n-gram document's table of expected drafts and speed-ups."""
    rows = []
    for alpha, theirs in _NGRAM:
        tokens = expected_tokens(alpha, _DEPTH)
        speeds = [f"{tokens:.2f}", f"{theirs + 1:.2f}", f"{tokens / _OVERHEAD:.2f}"]
        rows.append([f"{alpha:g}", *beside(tokens - 1, theirs), *speeds])
    head = ("α", "accepted of 4", "document", "same", "tokens a round", "document", "over a pass that costs 1.3")
    return markdown(head, rows)


def printed_drafts(alpha: float) -> float:
    """Return the n-gram document's formula as printed, which counts twice that all drafts are kept."""
    return sum(kept * alpha**kept * (1 - alpha) for kept in range(_DEPTH + 1)) + _DEPTH * alpha**_DEPTH


def ngram_trace(text: str, context: str, most: int = _DEPTH) -> list[str]:
    """Return the draft of the n-gram source after `context`, once it has read `text`. Words are tokens."""
    words = sorted({*text.split(), *context.split()})
    source = Ngram(512)
    source.read([words.index(word) for word in f"{text} {context}".split()])
    return [words[token] for token in source.draft([], most)]


def greedy_round(drafts: Sequence[str], verified: Sequence[str]) -> list[str]:
    """Return the words that a round at temperature 0 commits if the target's argmaxes are `verified`."""
    words = sorted({*drafts, *verified})
    p = torch.eye(len(words), dtype=torch.float64)[[words.index(word) for word in verified]]
    draft = certain([words.index(word) for word in drafts], Mode.REJECTION)
    (verdict,) = verify(Mode.REJECTION, p, [draft], [0], [0])
    return [words[token] for token in verdict.tokens]


def egag_trace() -> str:
    """Trace γ by the entropy of q: γ_min + (γ_max - γ_min)(1 - EMA(H / log of the number of ids)), rounded."""
    least, most, smoothing = _EGAG
    average, rows = 0.0, []
    for step, law in enumerate(_LAWS):
        normed = sum(q * math.log(1 / q) for q in law if q) / math.log(len(law))
        average = normed if step == 0 else smoothing * average + (1 - smoothing) * normed
        gamma = round(least + (most - least) * (1 - average))
        shown = ", ".join(f"{q:g}" for q in law)
        rows.append([str(step), shown, f"{normed:.3f}", f"{average:.3f}", str(gamma)])
    return markdown(("step", "q", "H_norm", "EMA", "γ"), rows)


def gamma_trace(gamma: int, left: int, alpha_kept: Sequence[int]) -> str:
    """Trace the draft length of each round near the end of a generation: min(γ, tokens left - 1)."""
    rows = []
    for number, kept in enumerate(alpha_kept):
        drafted = max(0, min(gamma, left - 1))
        committed = min(kept, drafted) + 1
        rows.append([str(number), str(left), str(drafted), str(min(kept, drafted)), str(committed)])
        left -= committed
        if left <= 0:
            break
    return markdown(("round", "tokens left", "γ", "kept", "committed"), rows)


def without_adjustment() -> tuple[list[float], float]:
    """Return the law of a token drawn from p instead of the residual after a rejection, and its distance from p."""
    kept = [min(p, q) for p, q in zip(P, Q, strict=True)]
    law = [own + (1 - sum(kept)) * p for own, p in zip(kept, P, strict=True)]
    return law, 0.5 * sum(abs(out - p) for out, p in zip(law, P, strict=True))


def greedy_by_ratio() -> float:
    """Return the probability that a greedy token is the target's if drafts are kept with probability min(1, p/q).

    After a rejection the token is the likeliest of the residual.
    """
    draft, best = Q.index(max(Q)), P.index(max(P))
    kept = min(1.0, P[draft] / Q[draft])
    gaps = [max(p - q, 0.0) for p, q in zip(P, Q, strict=True)]
    return kept * (draft == best) + (1 - kept) * (gaps.index(max(gaps)) == best)


def with_rejected() -> float:
    """Return the distance from p of the law of a round's first token, q, if the first rejected draft is returned."""
    return 0.5 * sum(abs(p - q) for p, q in zip(P, Q, strict=True))


def footnote_length(beta: float, most: int) -> float:
    """Return Σ (1 - β) β^(t-1) t up to t = T + 1, as in a footnote, which omits the mass β^(T+1)."""
    return sum((1 - beta) * beta ** (t - 1) * t for t in range(1, most + 2))


def render() -> str:
    """Return the section of the page."""
    law, distance = without_adjustment()
    text = "the cat sat on the mat . " * 3 + "a dog ran by . "
    drafted = ngram_trace(text, "the cat sat")
    committed = greedy_round(["quick", "brown", "fox", "jumps"], ["quick", "brown", "fox", "jumped", "over"])
    shown = ", ".join(f"{x:.2f}" for x in law)
    printed = ", ".join(f"{printed_drafts(alpha):.2f}" for alpha, _ in _NGRAM)
    return f"""### N-gram predictor

Expected drafts that are kept, of four:

{accepted_drafts()}

The document's formula counts the case that all four are kept twice: it gives {printed}. Its 0.94 is right;
its 2.05 and 3.28 are too high, and its speed-ups inherit that.

Its trace, by `specdec/sources/ngram.py` after a text that repeats "the cat sat on the mat.": after "the cat sat"
come "{" ".join(drafted)}". The document finds nothing for the 4-gram "on the mat" and falls back to the 3-gram. That
cannot be: it has seen "sat on the" go on with "mat" 23 times, so something followed "on the mat" 22 times at least.

Its round of verification, by `specdec/rules/verification.py`: drafts "quick brown fox jumps" against "quick brown fox
jumped over" commit "{" ".join(committed)}", four tokens in one pass, as it says. That speculation "never hurts" is
not so: a pass of five tokens costs more than one of one, by its own 20 to 40 %, whether or not a draft is kept.

### γ near the end, and γ by entropy (EGAG)

A draft is cut so that a round cannot commit more than is left. γ = 5, 12 tokens left, drafts kept as in the column:

{gamma_trace(5, 12, (5, 2, 5, 5))}

The implementation notes name EGAG and give no formula. With H_norm, the entropy of q over the log of the number of
ids, and γ = round(γ_min + (γ_max − γ_min)(1 − EMA(H_norm))), γ in {_EGAG[0]}..{_EGAG[1]} and half of the old average
kept:

{egag_trace()}

Their sample of a debug output contradicts itself. "Accepted: 3" is printed over drafts of which the third is rejected,
so two are kept. The token after them is at position 13, not at 12, where a kept draft is.

Their option to skip the residual breaks exactness: with p = {P} and q = {Q} a token's law is ({shown}), at a distance
of {distance:.2f} from p. Their rate, accepted / drafted, is no α: tokens after the first rejection were never
judged. At α = 0.8 and γ = 5 it reads {(expected_tokens(0.8, 5) - 1) / 5:.2f}.

Their greedy processor drafts the argmax of q and keeps it by r ≤ p/q of the softmaxes, so the text is not the target's
greedy text. With these p and q, a token is the target's argmax with a probability of only {greedy_by_ratio():.2f}.
Argmax sampling needs one-hot p and q (§2.2 of the paper).

### Lecture notes on speculative decoding

β = 0.8 and T = 10 give {expected_tokens(0.8, 10):.2f} tokens a round: "more than 4" holds. The sum in the footnote
gives {footnote_length(0.8, 10):.2f}: P(L = T + 1) is β^T, and not (1 − β)β^T.

§1.1, steps 5 to 7, takes n as the first rejected position and returns x_1 … x_n, the rejected token among them, and a
token for n + 1 drawn from the residual of position n. What is meant is x_1 … x_(n-1) and x_n from the residual: as
printed the first token of a round has the law of q, at a distance of {with_rejected():.2f} from p in the example
above. Appendix A, steps 3 and 4, has the same slip: y_n belongs in the place of x_n.

The greedy tree of Appendix A ends with V + [ν.x]. ν.x is the token of the node itself, which V has already; the
target's next token, ν.y, is what is to be appended. As printed the last accepted token would be committed twice.
"""

"""Our own runs: α of every approximation on the target's own text, lenience, rejection sampling, and wall time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks import costs
from benchmarks.drafters import candidates
from benchmarks.local import Local, load
from benchmarks.pair import Pair
from benchmarks.paper.published import LENIENCES
from benchmarks.peers.turns import Fixed, interleave
from benchmarks.reports.statistics import Ratio, paired
from benchmarks.run import Ask, Run
from drafter_service.config import DrafterSettings
from models.train.sampling import continue_rows
from specdec.planning.gamma import best_gamma, speedup
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode
from specdec.sources.counts import COUNTS_FILE, Counts, load_counts

_PROMPT = 48
_COST_STEPS = 20
_TRIAL, _LONGEST = 3, 12
"""γ of the run that estimates α, and the longest γ considered for the best one."""
_BACK_OFF = 1.0
"""Weight of the unigram distribution in a bigram row, in counts, as in the drafter of counts."""
_SUPPORT = DrafterSettings.model_fields["support"].default
"""Largest number of ids of a served q̂."""
Law = Callable[[Tensor], Tensor]
"""Return the distributions q [N, V] after each of a row's tokens [N]."""


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of texts, tokens and repeats to measure."""

    rows: int
    tokens: int
    asks: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Approximation:
    """A drafter on the target's text at one temperature."""

    alpha: float
    """Mean Σ min(p, q)."""
    lenient: tuple[float, ...]
    """α at each of LENIENCES."""
    rejection: float
    """Acceptance rate of one step of rejection sampling, Σ p(x) · min(q/p) (A.2)."""
    served: float = 0.0
    """Mean Σ min(p, q̂), where q̂ is what a drafter would send: the likeliest ids with rounded weights, or all of them if
    they are equally likely."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A drafter's wall time at its best γ."""

    gamma: int
    alpha: float
    c: float
    expected: float
    measured: Ratio


@torch.inference_mode()
def approximations(pair: Pair, size: Size, temperature: float, seed: int) -> Mapping[str, Approximation]:
    """Return every approximation on `size.rows` texts that the target writes at that temperature."""
    target, drafter = (
        LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        for folder in (pair.target, pair.drafter)
    )
    prompts = torch.tensor([ask.prompt for ask in pair.asks(size.rows, _PROMPT, size.tokens)])
    generator = torch.Generator().manual_seed(seed)
    rows = continue_rows(target, prompts, size.tokens, temperature, generator)
    laws: dict[str, Law] = {**_counted(pair), "model": lambda row: drafter(input_ids=row[None]).logits[0].softmax(-1)}
    made: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in laws}
    for row in rows:
        p = target(input_ids=row[None, :-1]).logits[0, _PROMPT - 1 :].softmax(-1)
        for name, law in laws.items():
            q = law(row[:-1])[_PROMPT - 1 :]
            made[name].append((*_judged(p, q, temperature), _served(p, q, temperature)))
    return {name: _summary(each) for name, each in made.items()}


def _counted(pair: Pair) -> dict[str, Law]:
    """Return uniform random ids, unigrams and bigrams."""
    paths = {each.name: each.path for each in candidates(pair) if each.kind == "counts"}
    counts = load_counts(paths["bigram"] / COUNTS_FILE)
    unigram = (counts.single + 1) / (counts.single + 1).sum()
    uniform = torch.full_like(unigram, 1 / len(unigram))
    pairs = _bigrams(counts, unigram)
    return {
        "random": lambda row: uniform.expand(len(row), -1),
        "unigram": lambda row: unigram.expand(len(row), -1),
        "bigram": lambda row: pairs[row],
    }


def _bigrams(counts: Counts, unigram: Tensor) -> Tensor:
    table = _BACK_OFF * unigram.repeat(len(unigram), 1)
    firsts = torch.repeat_interleave(torch.arange(len(unigram)), counts.starts.diff())
    table[firsts, counts.seconds] += counts.pairs
    return table / table.sum(-1, keepdim=True)


def _judged(p: Tensor, q: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """Return α at each lenience and that of rejection sampling, for each position. Temperature 0 compares argmaxes."""
    if temperature == 0:
        x = q.argmax(-1, keepdim=True)
        share = p.gather(-1, x)[:, 0] / p.amax(-1)
        strict = (p.argmax(-1) == x[:, 0]).float()
        return (*((share >= ell).float() if ell < 1 else strict for ell in LENIENCES), strict)
    lenient = (torch.minimum(p / ell, q).sum(-1) for ell in LENIENCES)
    return (*lenient, (q / p).nan_to_num(torch.inf).amin(-1).clamp(max=1.0))


def _served(p: Tensor, q: Tensor, temperature: float) -> Tensor:
    """Return Σ min(p, q̂) of each position.

    At temperature 0, q̂ has one id, so the sum is α. A uniform q is served as it is.
    """
    if temperature == 0:
        return _judged(p, q, temperature)[0]
    if bool((q == q[0, 0]).all()):
        return torch.minimum(p, q).sum(-1)
    rows = range(len(q))
    _, laws = propose(Mode.REJECTION, q.double(), [0] * len(rows), rows, _SUPPORT)
    shares = [law.weights.double() / law.weights.sum() for law in laws]
    return torch.stack([torch.minimum(p[row, laws[row].ids].double(), shares[row]).sum() for row in rows]).float()


def _summary(judged: list[tuple[Tensor, ...]]) -> Approximation:
    *lenient, rejection, served = (torch.cat(column).mean().item() for column in zip(*judged, strict=True))
    return Approximation(lenient[0], tuple(lenient), rejection, served)


def walltime(pair: Pair, size: Size, temperature: float) -> Mapping[str, Speed]:
    """Time each drafter at the best γ of Theorem 3.8, in turn with plain decoding, in CPU time."""
    target, drafters = load(pair.target), {each.name: each.load() for each in candidates(pair)}
    asks = pair.asks(size.asks, _PROMPT, size.tokens, temperature)
    found = costs.measure(target, drafters, asks[0], _COST_STEPS)
    return {
        name: _timed(name, Local(target, drafters[name], time.process_time), asks, size, found) for name in drafters
    }


def _timed(name: str, peer: Local, asks: Sequence[Ask], size: Size, found: costs.Costs) -> Speed:
    c, _, _ = found.in_steps(name)
    gamma = max(1, best_gamma(_acceptance([peer.generate(replace(asks[0], gamma=_TRIAL))]), c, limit=_LONGEST))
    runs = interleave({"plain": Fixed(peer, 0), "drafting": Fixed(peer, gamma)}, asks, size.repeats)
    alpha = _acceptance(runs["drafting"])
    measured = paired([run.pace for run in runs["drafting"]], [run.pace for run in runs["plain"]])
    return Speed(gamma, alpha, c, speedup(alpha, gamma, c), measured)


def _acceptance(runs: Sequence[Run]) -> float:
    accepted, rejected = sum(run.accepted for run in runs), sum(run.rejected for run in runs)
    return accepted / max(1, accepted + rejected)


def traces(pair: Pair, tokens: int, gammas: Sequence[int]) -> Mapping[int, Sequence[tuple[int, int]]]:
    """Return Figure 5: the drafts and kept drafts of each round of one greedy generation, for each γ."""
    peer = Local(load(pair.target), candidates(pair)[0].load())
    ask = pair.asks(1, _PROMPT, tokens)[0]
    return {gamma: peer.generate(replace(ask, gamma=gamma)).verdicts for gamma in gammas}

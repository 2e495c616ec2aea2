"""Share of a pass taken by verdicts, by vocabulary."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.local import load
from benchmarks.reports.results import Figure, Goal, Report, Table
from benchmarks.reports.statistics import spread
from benchmarks.sections.lab import Lab
from specdec.engine import Chunk, NativeEngine
from specdec.engine.cpu.draw import draw_by_operator
from specdec.rules.draft import NO_DRAFT, Draft
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.target_pass import judge_batch

_CONTEXT, _SUPPORT, _EXPONENT = 64, 64, 1.5
_GOAL = Goal(0.05, at_most=True)
_HEAD = ("sizes of", "ids", "sessions", "drafts of each", "sampling", "mode", "pass, ms", "verdicts, ms", "share")
_TEXT = """\
The native engine alone, compiled, on one thread, with random weights in float32: a pass over sessions of {context}
tokens and the verdicts on it, in turns. A share is of pass and verdicts together. In the distributions that verdicts
are on, the r-th likeliest id has r^-{exponent:g} of the likeliest one's probability, so a nucleus of 0.95 has some 200
ids; drafts were drawn from the same distributions, {support} ids of each, so most are accepted."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model."""

    name: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    def config(self) -> LlamaConfig:
        """Return a Llama configuration with tied embeddings, as in models of these sizes."""
        return LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=self.hidden, intermediate_size=self.intermediate,
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
            max_position_embeddings=1024, tie_word_embeddings=True, eos_token_id=None, bos_token_id=None,
        )  # fmt: skip


MODELS = (
    Sizes("SmolLM2-135M", 49_152, 576, 1536, 30, 9, 3),
    Sizes("Qwen2.5-0.5B", 151_936, 896, 4864, 24, 14, 2),
)
QUICK = (Sizes("tiny", 2048, 32, 48, 1, 4, 2),)
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(),
    "temperature 1, top-p 0.95": SamplingParams(top_p=0.95),
}
_MODES = {0: (Mode.OFF,), 4: (Mode.REJECTION, Mode.COUPLED)}
"""Modes by number of drafts of each session."""


def measure(lab: Lab) -> Report:
    """Measure every case of every model."""
    turns, sessions = lab.scale.verdict_turns, lab.scale.verdict_sessions
    rows, shares = list[list[str]](), dict[str, float]()
    draw_by_operator()
    for sizes in QUICK if turns == 1 else MODELS:
        with TemporaryDirectory() as folder:
            engine = _engine(sizes, lab, Path(folder))
            found = [row for count in sessions for row in _rows(engine, sizes, count, turns)]
        rows += [row for row, _ in found]
        shares[sizes.name] = max(share for _, share in found)
    figures = [
        Figure(f"share of verdicts, sizes of {name}, most", f"{share:.3f}", str(_GOAL), _GOAL.verdict(share))
        for name, share in shares.items()
    ]
    return Report(
        "verdicts", _TEXT.format(context=_CONTEXT, exponent=_EXPONENT, support=_SUPPORT), figures, [Table(_HEAD, rows)]
    )


def _engine(sizes: Sizes, lab: Lab, folder: Path) -> NativeEngine:
    """Return an engine with random weights. Its folder has the pair's tokenizer, which is not used."""
    torch.manual_seed(0)
    LlamaForCausalLM(sizes.config()).save_pretrained(folder)
    for each in lab.scale.pair.target.glob("tokenizer*"):
        shutil.copy(each, folder)
    return load(folder, compiled=lab.scale.compiled)


def _rows(engine: NativeEngine, sizes: Sizes, sessions: int, turns: int) -> Iterator[tuple[list[str], float]]:
    for drafts, modes in _MODES.items():
        forward = _pass(engine, sessions, drafts)
        for name, params in SAMPLING.items():
            for mode in modes:
                judge = _verdicts(sizes.vocabulary, sessions, drafts, params, mode)
                passed, judged = _in_turns((forward, judge), turns)
                share = judged / (passed + judged)
                case = [sizes.name, f"{sizes.vocabulary:,}", str(sessions), str(drafts), name, mode.value]
                yield [*case, f"{1000 * passed:.1f}", f"{1000 * judged:.2f}", f"{share:.3f}"], share


def _pass(engine: NativeEngine, sessions: int, drafts: int) -> Callable[[], object]:
    names = [f"{sessions}/{drafts}/{number}" for number in range(sessions)]
    for name in names:
        engine.admit(name, _CONTEXT + drafts + 1)
        engine.reserve(name, _CONTEXT + drafts + 1)
        engine.forward([Chunk(name, [5] * _CONTEXT, 0)])

    def forward() -> None:
        engine.forward([Chunk(name, [7] * (drafts + 1), drafts + 1) for name in names])
        for name in names:
            engine.truncate(name, _CONTEXT)

    return forward


def _verdicts(vocabulary: int, sessions: int, drafts: int, params: SamplingParams, mode: Mode) -> Callable[[], object]:
    logits = _logits(sessions * (drafts + 1), vocabulary)
    rows = [
        _row(number, params, mode, logits[number * (drafts + 1) :][:drafts] if drafts else None)
        for number in range(sessions)
    ]
    return lambda: judge_batch(rows, logits)


def _logits(count: int, vocabulary: int) -> Tensor:
    """Return logits by Zipf's law, with a different order of the ids in each row."""
    order = torch.rand(count, vocabulary, generator=torch.Generator().manual_seed(1)).argsort(-1)
    return -_EXPONENT * (order + 1.0).log()


def _row(number: int, params: SamplingParams, mode: Mode, logits: Tensor | None) -> Row:
    """Return a row whose draft was drawn from the distributions of its logits."""
    own, draft = replace(params, seed=number), NO_DRAFT
    tokens = tuple(range(_CONTEXT))
    if logits is not None:
        count = len(logits)
        q = probabilities(logits, [own] * count, [History()] * count)
        ids, laws = propose(mode, q, [number] * count, list(range(_CONTEXT, _CONTEXT + count)), _SUPPORT)
        draft = Draft(tuple(ids), tuple(laws))
    call = GenerationCall(
        tokens=tokens, prompt_len=_CONTEXT, sampling=own, max_tokens=64, stop_token_ids=(),
        speculation=Speculation(mode),
    )  # fmt: skip
    return Row(call, str(number), 0.0, _CONTEXT + 64, tokens, _CONTEXT, draft)


def _in_turns(works: Sequence[Callable[[], Any]], turns: int) -> list[float]:
    """Return the median seconds of each work."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(turns + 1):
        for work, own in zip(works, times, strict=True):
            started = time.perf_counter()
            work()
            if turn:
                own.append(time.perf_counter() - started)
    return [spread(own).value for own in times]

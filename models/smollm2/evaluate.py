"""Acceptance rate α of the drafter per category of Spec-Bench, on the target's own answers to unseen prompts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from models.smollm2.answers import Answers, Teacher, answer
from models.smollm2.distill import hidden_states, own_tokens

QUESTIONS = Path(__file__).resolve().parents[2] / "benchmarks" / "spec_bench.jsonl"
_TOKENS = 96


@dataclass(frozen=True)
class Alpha:
    """Acceptance rates in one category."""

    sampled: float
    """At temperature 1: mean of Σ min(p, q) over the target's 64 most likely ids. The remaining ids add little."""
    greedy: float
    """At temperature 0: share of tokens at which both models have the same argmax."""
    tokens: int


def questions(file: Path = QUESTIONS) -> Mapping[str, Sequence[str]]:
    """Return the first turns of each category's questions."""
    found: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row["category"], []).append(row["turns"][0])
    return found


def alphas(
    teacher: Teacher, drafter: LlamaForCausalLM, ids: Tensor, seed: int, tokens: int = _TOKENS
) -> Mapping[str, Alpha]:
    """Return α per category, for a drafter whose head has `ids`."""
    made = {}
    for category, texts in questions().items():
        inputs = [teacher.tokens([("user", text)]) for text in texts]
        sampled, greedy = (answer(inputs, teacher, seed, tokens, (temperature,)) for temperature in (1.0, 0.0))
        overlap, _ = _judged(sampled, drafter, ids)
        _, same = _judged(greedy, drafter, ids)
        made[category] = Alpha(overlap.mean().item(), same.float().mean().item(), len(overlap) + len(same))
    return made


@torch.inference_mode()
def _judged(answers: Answers, drafter: LlamaForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ min(p, q) and whether the argmaxes agree, for each answer token."""
    head = drafter.get_input_embeddings().weight[ids]
    logits = (hidden_states(drafter, answers) @ head.T).float()
    own = own_tokens(answers)
    q = torch.zeros(len(logits), drafter.config.vocab_size).index_copy_(-1, ids, logits.softmax(-1))
    theirs = answers.ids[own].long()
    overlap = torch.minimum(answers.log_probs[own].float().exp(), q.gather(-1, theirs)).sum(-1)
    return overlap, ids[logits.argmax(-1)] == theirs[:, 0]

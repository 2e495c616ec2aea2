"""Acceptance rate α of the drafter by category, on the target's own answers to prompts that it was not trained on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specdec.errors import ConfigError
from specdec.training.answers import TargetAnswers, Teacher, answer
from specdec.training.distil import hidden_states, own_tokens
from specdec.training.weights import CausalModel, head_weight

_TOKENS = 96


@dataclass(frozen=True)
class DraftAlpha:
    """Acceptance rates in one category."""

    sampled: float
    """At temperature 1: mean of Σ min(p, q) over the target's 64 most likely ids. The remaining ids add little."""
    greedy: float
    """At temperature 0: share of tokens at which both models have the same argmax."""
    tokens: int


def questions(file: Path) -> Mapping[str, Sequence[str]]:
    """Return the first turns of a file in the format of Spec-Bench, by category.

    Raises:
        ConfigError: the file cannot be read, or a row lacks `category` or `turns`.
    """
    found: dict[str, list[str]] = {}
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found.setdefault(row["category"], []).append(row["turns"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"--questions {file}: cannot be read: {error}") from error
    return found


def alphas(
    teacher: Teacher,
    drafter: CausalModel,
    ids: Tensor,
    asked: Mapping[str, Sequence[str]],
    seed: int,
    tokens: int = _TOKENS,
) -> Mapping[str, DraftAlpha]:
    """Return α by category of the messages asked, for a drafter whose head has `ids`."""
    made = {}
    for category, texts in asked.items():
        inputs = [teacher.tokens([("user", text)]) for text in texts]
        sampled, greedy = (answer(inputs, teacher, seed, tokens, (temperature,)) for temperature in (1.0, 0.0))
        overlap, _ = _judged(sampled, drafter, ids)
        _, same = _judged(greedy, drafter, ids)
        made[category] = DraftAlpha(overlap.mean().item(), same.float().mean().item(), len(overlap) + len(same))
    return made


@torch.inference_mode()
def _judged(answers: TargetAnswers, drafter: CausalModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ min(p, q) and whether the argmaxes agree, for each answer token."""
    logits = (hidden_states(drafter, answers) @ head_weight(drafter, ids).T).float()
    own = own_tokens(answers)
    q = torch.zeros(len(logits), drafter.config.vocab_size).index_copy_(-1, ids, logits.softmax(-1))
    theirs = answers.ids[own].long()
    overlap = torch.minimum(answers.log_probs[own].float().exp(), q.gather(-1, theirs)).sum(-1)
    return overlap, ids[logits.argmax(-1)] == theirs[:, 0]

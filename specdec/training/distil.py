"""Distillation of the drafter: the target's first layers, trained on the distributions of the target's own answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specdec.training.answers import NEW_TOKENS, TargetAnswers, ranked_ids
from specdec.training.compute import Compute
from specdec.training.loop import Run, train
from specdec.training.losses import blend, divergence_of
from specdec.training.optimizer import Schedule, build_optimizers
from specdec.training.weights import CausalModel, head_weight, initial_drafter

HEAD = 8192
"""Number of ids in the drafter's head, the most frequent ones."""
ROWS = 16
RATE = 1e-3
WARMUP = 50
DECAY_SHARE = 0.5
_TOKENS_A_ROW = NEW_TOKENS


@dataclass(frozen=True)
class DistilJob:
    """Inputs of the distillation besides the target. `state` is the folder of its checkpoint."""

    answers: Sequence[TargetAnswers]
    steps: int
    seed: int
    state: Path
    layers: int = 2


def frequent_ids(answers: Sequence[TargetAnswers], vocabulary: int, count: int) -> Tensor:
    """Return the `count` ids with the most target probability over all answers, ascending, int64."""
    own = ((each.ids[mask], each.log_probs[mask]) for each in answers for mask in [own_tokens(each)])
    return ranked_ids(own, vocabulary, count)


def distil(job: DistilJob, target: CausalModel, ids: Tensor, compute: Compute) -> CausalModel:
    """Train, or resume training, the drafter with `ids` in its head. Return the float32 model in evaluation mode."""
    drafter = initial_drafter(target, job.layers)
    for frozen in (drafter.get_input_embeddings(), drafter.get_output_embeddings()):
        frozen.requires_grad_(False)
    loss_of = _loss_of_step(job, drafter, ids, compute)
    run = Run("drafter", Schedule(job.steps, WARMUP, DECAY_SHARE), ROWS * _TOKENS_A_ROW, job.state / "drafter.pt")
    body = drafter.base_model
    train(run, body, build_optimizers(_Trained(body), RATE, compute.dtype), loss_of)
    return drafter.eval()


class _Trained(torch.nn.Module):
    """The trained parts, in the form that the optimizers expect: all but the embeddings."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.layers, self.norm = body.layers, body.norm


def _loss_of_step(job: DistilJob, drafter: CausalModel, ids: Tensor, compute: Compute) -> Callable[[int], Tensor]:
    head = head_weight(drafter, ids).detach()
    places = torch.full((drafter.config.vocab_size,), -1).index_copy_(0, ids, torch.arange(len(ids)))

    def loss_of(step: int) -> Tensor:
        rows = chosen_rows(job, step)
        with compute.autocast():
            logits = hidden_states(drafter, rows) @ head.T
        return divergence(rows, places, logits.float(), blend(step / job.steps))

    return loss_of


def chosen_rows(job: DistilJob, step: int) -> TargetAnswers:
    """Return ROWS rows of one batch of answers. Batches come in a seeded order; each row is used once per epoch."""
    per_batch = len(job.answers[0].rows) // ROWS
    epoch, place = divmod(step, per_batch * len(job.answers))
    generator = torch.Generator().manual_seed(job.seed * 1_000_003 + epoch)
    order = torch.randperm(per_batch * len(job.answers), generator=generator)
    number, part = divmod(int(order[place]), per_batch)
    return _cut(job.answers[number], slice(part * ROWS, (part + 1) * ROWS))


def _cut(answers: TargetAnswers, rows: slice) -> TargetAnswers:
    """Return some rows, without the columns that are padding in all of them."""
    left = int(answers.starts[rows].min())
    return TargetAnswers(
        answers.rows[rows, left:], answers.starts[rows] - left, answers.ends[rows] - left,
        answers.ids[rows], answers.log_probs[rows],
    )  # fmt: skip


def hidden_states(model: CausalModel, answers: TargetAnswers) -> Tensor:
    """Return the hidden states [own tokens, hidden] from which the model predicts each answer token."""
    columns = torch.arange(answers.rows.shape[1] - 1)
    mask = (columns >= answers.starts[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    states = model.base_model(
        input_ids=answers.rows[:, :-1], attention_mask=mask, position_ids=positions, use_cache=False
    ).last_hidden_state
    found: Tensor = states[:, answers.prompt - 1 :][own_tokens(answers)]
    return found


def divergence(answers: TargetAnswers, places: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """Return the divergence of `divergence_of` over the answers' tokens, for logits [own tokens, head]."""
    own = own_tokens(answers)
    return divergence_of(answers.ids[own], answers.log_probs[own], places, logits, weights)


def own_tokens(answers: TargetAnswers) -> Tensor:
    """Return a mask of the tokens up to the end of each answer, bool [rows, NEW_TOKENS]."""
    columns = torch.arange(answers.ids.shape[1]) + answers.prompt
    return columns < answers.ends[:, None]

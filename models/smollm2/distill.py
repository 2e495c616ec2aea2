"""Distilling the drafter: the target's first layers, taught by the distributions behind the target's own answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from models.smollm2.answers import NEW_TOKENS, Answers
from models.train.compute import Compute
from models.train.distill import SHARP_TEMPERATURE, blend, initial_drafter
from models.train.loop import Run, train
from models.train.optimizer import Schedule, build_optimizers

LAYERS = 2
HEAD = 8192
"""Ids that the head knows: the most frequent ones."""
ROWS = 16
RATE = 1e-3
WARMUP = 50
DECAY_SHARE = 0.5
_TOKENS_A_ROW = NEW_TOKENS


@dataclass(frozen=True)
class Job:
    """What the distillation depends on, besides the target; `state` is where its checkpoint is kept."""

    answers: Sequence[Answers]
    steps: int
    seed: int
    state: Path


def frequent_ids(answers: Sequence[Answers], vocabulary: int, count: int) -> Tensor:
    """The `count` ids with most of the target's probability over all answers, ascending, int64.

    A tie falls to the lower id, which is the more frequent one: a tokenizer's merges are numbered by frequency.
    """
    mass = torch.zeros(vocabulary, dtype=torch.float64)
    for each in answers:
        own = own_tokens(each)
        mass.index_add_(0, each.ids[own].flatten().long(), each.log_probs[own].double().exp().flatten())
    return mass.argsort(descending=True, stable=True)[:count].sort().values


def distil(job: Job, target: LlamaForCausalLM, ids: Tensor, compute: Compute) -> LlamaForCausalLM:
    """Train (or finish training) the drafter, whose head has `ids`; gives the float32 model in evaluation mode."""
    drafter = initial_drafter(target, LAYERS)
    drafter.get_input_embeddings().weight.requires_grad_(False)  # they are the head, too, and stay as they are
    loss_of = _loss_of_step(job, drafter, ids, compute)
    run = Run("drafter", Schedule(job.steps, WARMUP, DECAY_SHARE), ROWS * _TOKENS_A_ROW, job.state / "drafter.pt")
    body = drafter.base_model
    train(run, body, build_optimizers(_Trained(body), RATE), loss_of)
    return drafter.eval()


class _Trained(torch.nn.Module):
    """The parts that are trained, as the optimisers look at them: all but the embeddings."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.layers, self.norm = body.layers, body.norm


def _loss_of_step(job: Job, drafter: LlamaForCausalLM, ids: Tensor, compute: Compute) -> Callable[[int], Tensor]:
    head = drafter.get_input_embeddings().weight[ids].detach()
    places = torch.full((drafter.config.vocab_size,), -1).index_copy_(0, ids, torch.arange(len(ids)))

    def loss_of(step: int) -> Tensor:
        rows = chosen_rows(job, step)
        with compute.autocast():
            logits = hidden_states(drafter, rows) @ head.T
        return divergences(rows, places, logits.float()) @ blend(step / job.steps)

    return loss_of


def chosen_rows(job: Job, step: int) -> Answers:
    """ROWS rows of one batch of answers: batches in a seeded order, and each of its rows once an epoch."""
    per_batch = len(job.answers[0].rows) // ROWS
    epoch, place = divmod(step, per_batch * len(job.answers))
    generator = torch.Generator().manual_seed(job.seed * 1_000_003 + epoch)
    order = torch.randperm(per_batch * len(job.answers), generator=generator)
    number, part = divmod(int(order[place]), per_batch)
    return _cut(job.answers[number], slice(part * ROWS, (part + 1) * ROWS))


def _cut(answers: Answers, rows: slice) -> Answers:
    """Some rows, without the columns in which none of them has a token."""
    left = int(answers.starts[rows].min())
    return Answers(
        answers.rows[rows, left:], answers.starts[rows] - left, answers.ends[rows] - left,
        answers.ids[rows], answers.log_probs[rows],
    )  # fmt: skip


def hidden_states(model: LlamaForCausalLM, answers: Answers) -> Tensor:
    """The states [own tokens, hidden] from which the model predicts each token of the answers."""
    columns = torch.arange(answers.rows.shape[1] - 1)
    mask = (columns >= answers.starts[:, None]).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    states = model.base_model(
        input_ids=answers.rows[:, :-1], attention_mask=mask, position_ids=positions, use_cache=False
    ).last_hidden_state
    found: Tensor = states[:, answers.prompt - 1 :][own_tokens(answers)]
    return found


def divergences(answers: Answers, places: Tensor, logits: Tensor) -> Tensor:
    """[3] means over the answers' tokens: forward KL without its constant, and total variation, plain and sharp.

    Args:
        answers: with the target's distributions, over its likeliest ids.
        places: for each id its column in `logits`, -1 where the head does not have it.
        logits: the drafter's, [own tokens, head].
    """
    own = own_tokens(answers)
    at, log_p = places[answers.ids[own].long()], answers.log_probs[own].float()
    known = at >= 0
    log_q = logits.log_softmax(-1).gather(-1, at.clamp(min=0))
    p, q = log_p.exp() * known, log_q.exp()
    sharp_p = (log_p / SHARP_TEMPERATURE).softmax(-1) * known
    sharp_q = (logits / SHARP_TEMPERATURE).softmax(-1).gather(-1, at.clamp(min=0))
    kl = -(p * log_q).sum(-1).mean()
    plain, sharp = (1 - torch.minimum(*each).sum(-1).mean() for each in ((p, q), (sharp_p, sharp_q)))
    return torch.stack((kl, plain, sharp))


def own_tokens(answers: Answers) -> Tensor:
    """Which tokens belong to an answer, bool [rows, NEW_TOKENS]: those up to its end."""
    columns = torch.arange(answers.ids.shape[1]) + answers.prompt
    return columns < answers.ends[:, None]

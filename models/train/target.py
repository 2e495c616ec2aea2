"""Training of the target on the corpus: next-token cross-entropy on short windows, then on full-length ones."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from models.train.architecture import CONTEXT, TARGET, build
from models.train.data import Windows
from specdec.training.compute import Compute
from specdec.training.loop import Run, train
from specdec.training.optimizer import Schedule, build_optimizers

TOKENS_PER_STEP = 8192
SHORT = CONTEXT // 2
RATE = 3e-3
WARMUP = 100
DECAY_SHARE = 0.2


@dataclass(frozen=True)
class TargetJob:
    """Inputs of the target's training."""

    tokens: Tensor
    vocabulary: int
    steps: int
    seed: int
    checkpoint: Path


def train_target(job: TargetJob, compute: Compute) -> LlamaForCausalLM:
    """Train, or resume training, the target. Return the float32 model in evaluation mode."""
    model = build(TARGET, job.vocabulary, job.seed).to(compute.device)
    schedule = Schedule(job.steps, WARMUP, DECAY_SHARE)
    lengths = {length: Windows(job.tokens, length, job.seed) for length in (SHORT, CONTEXT)}

    @compute.compile
    def loss_of_batch(batch: Tensor) -> Tensor:
        with compute.autocast():
            logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    def loss_of(step: int) -> Tensor:
        # The decay uses full-length windows, so every position is trained. Cheaper short windows do most of the work.
        length = SHORT if step < schedule.decay_start else CONTEXT
        return loss_of_batch(lengths[length].batch(step, TOKENS_PER_STEP // length).to(compute.device))

    run = Run("target", schedule, TOKENS_PER_STEP, job.checkpoint)
    train(run, model, build_optimizers(model, RATE, compute.dtype), loss_of)
    return model

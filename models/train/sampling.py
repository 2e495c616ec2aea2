"""Continuations written by a model itself: distillation text and evaluation text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from models.train.checkpoint import write_whole
from models.train.compute import Compute
from models.train.data import Windows


@torch.inference_mode()
def continue_rows(
    model: LlamaForCausalLM, prompts: Tensor, new_tokens: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """Extend int64 prompts [rows, n] to [rows, n + new_tokens]; temperature 0 takes the argmax."""
    cache = DynamicCache()
    rows, step_input = prompts, prompts
    for _ in range(new_tokens):
        logits = model(input_ids=step_input, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        step_input = _pick(logits.float(), temperature, generator)
        rows = torch.cat((rows, step_input), dim=1)
    return rows


@dataclass(frozen=True)
class SampleJob:
    """Batches of `rows` texts of `length` tokens; each opens with corpus text; batches take temperatures in turn."""

    prompts: Windows
    rows: int
    length: int
    batches: int
    temperatures: tuple[float, ...]
    seed: int


def sampled_text(job: SampleJob, model: LlamaForCausalLM, path: Path, compute: Compute) -> Tensor:
    """int64 [batches * rows, length]: corpus text that goes on as the model's own; kept in `path` for a resume."""
    if path.exists():
        stored: Tensor = torch.load(path, weights_only=True)
        return stored
    rows = torch.cat(list(_batches(job, model, compute)))
    write_whole(path, rows)
    return rows


def _batches(job: SampleJob, model: LlamaForCausalLM, compute: Compute) -> Iterator[Tensor]:
    for index in track(range(job.batches), description="sampling from the target", transient=True):
        generator = torch.Generator(compute.device).manual_seed(job.seed * 1_000_003 + index)
        start = job.prompts.batch(index, job.rows).to(compute.device)
        temperature = job.temperatures[index % len(job.temperatures)]
        with compute.autocast():
            yield continue_rows(model, start, job.length - start.shape[1], temperature, generator).cpu()


def _pick(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)

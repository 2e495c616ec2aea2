"""The whole pipeline as one function: corpus, tokenizer, target, drafter, export, evaluation, card."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from models.train import distill, evaluate, target
from models.train.architecture import CONTEXT
from models.train.card import Completion, Facts, write_card
from models.train.corpus import Corpus, read_corpus, stdlib_root
from models.train.data import encode
from models.train.sampling import continue_rows
from models.train.tokenizer import train_tokenizer
from specdec.training.compute import Compute
from specdec.training.step_cost import step_cost
from specdec.training.weights import export, load

_PROMPTS = (
    "import os\n\n\ndef read_lines(path):\n",
    "class Stack:\n    def __init__(self",
    "def parse_args(args=None):\n    parser = argparse.",
)
_COMPLETION_TOKENS = 96


@dataclass(frozen=True)
class Plan:
    """Training length, seed, output folder, and folder of the state for a resume."""

    target_steps: int
    drafter_steps: tuple[int, int, int]
    seed: int
    out: Path
    state: Path


def run(plan: Plan, compute: Compute) -> Facts:
    """Complete the training, export the pair, measure the exported weights and write the card."""
    corpus = read_corpus(stdlib_root(), plan.seed)
    tokenizer = train_tokenizer((document.text for document in corpus.train), CONTEXT)
    tokens = encode(corpus.train, tokenizer)
    teacher = target.train_target(
        target.TargetJob(tokens, len(tokenizer), plan.target_steps, plan.seed, plan.state / "target.pt"), compute
    )
    # The target's text and the drafter depend on this target, so their folder is named after its step count.
    job = distill.DrafterJob(tokens, plan.drafter_steps, plan.seed, plan.state / f"after-{plan.target_steps}")
    student = distill.train_drafter(job, teacher, compute)
    for model, name in ((teacher, "target"), (student, "drafter")):
        export(model, tokenizer, plan.out / name)
    facts = _measure(plan, corpus, tokens, tokenizer, compute)
    write_card(facts, plan.out)
    return facts


def _measure(plan: Plan, corpus: Corpus, tokens: Tensor, tokenizer: PreTrainedTokenizerFast, compute: Compute) -> Facts:
    teacher, student = (load(plan.out / name).to(compute.device) for name in ("target", "drafter"))
    held_out = encode(corpus.held_out, tokenizer)
    text_bytes = sum(len(document.text.encode()) for document in corpus.held_out)
    return Facts(
        documents=len(corpus.train),
        train_tokens=len(tokens),
        held_out=tuple(document.path for document in corpus.held_out),
        target=_describe(teacher),
        drafter=_describe(student),
        target_steps=plan.target_steps,
        target_tokens=plan.target_steps * target.TOKENS_PER_STEP,
        drafter_steps=plan.drafter_steps,
        drafter_tokens=sum(plan.drafter_steps) * distill.ROWS * distill.LENGTH,
        seed=plan.seed,
        device=compute.device.type.upper(),
        loss=evaluate.held_out_loss(teacher, held_out, text_bytes),
        alpha_sampled=evaluate.alpha(teacher, student, held_out, 1.0, plan.seed),
        alpha_greedy=evaluate.alpha(teacher, student, held_out, 0.0, plan.seed),
        cost=step_cost(teacher, student),
        completions=tuple(_complete(teacher, tokenizer, prompt, 0.5, plan.seed) for prompt in _PROMPTS),
    )


def _describe(model: LlamaForCausalLM) -> str:
    config = model.config
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    return (
        f"Llama, layers {config.num_hidden_layers}, hidden {config.hidden_size}, "
        f"vocabulary {config.vocab_size}, context {config.max_position_embeddings}, {millions:.1f} M parameters"
    )


def _complete(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompt: str, temperature: float, seed: int
) -> Completion:
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(prompt)["input_ids"]]], device=model.device)
    generator = torch.Generator(model.device).manual_seed(seed)
    rows = continue_rows(model, ids, _COMPLETION_TOKENS, temperature, generator)
    return Completion(prompt, str(tokenizer.decode(rows[0, 1:])), temperature)

"""Answers that the target writes, each token with the target's own distribution, kept on disk batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from models.smollm2.prompts import prompts
from models.train.checkpoint import write_whole

ROWS = 96
NEW_TOKENS = 192
KEPT = 64
"""The likeliest ids of a position whose probabilities are kept."""
_GROUP = 8
"""Batches whose prompts are shared out by length, so that little of a batch is padding."""
_STRIDE = 5
"""Short and long prompts come in turns, so that the first batches of a group have both."""
_TEMPERATURES = (1.0, 0.0, 0.7, 1.0)


@dataclass(frozen=True)
class Answers:
    """A batch of answers; rows are padded on the left, so that all answers begin in the same column."""

    rows: Tensor
    """int64 [ROWS, prompt + NEW_TOKENS]."""
    starts: Tensor
    """int64 [ROWS], the column of each row's first token."""
    ends: Tensor
    """int64 [ROWS], the column behind each answer's last token."""
    ids: Tensor
    """int32 [ROWS, NEW_TOKENS, KEPT], the target's likeliest ids for each token of the answer."""
    log_probs: Tensor
    """float16 [ROWS, NEW_TOKENS, KEPT], natural logarithms of their probabilities at temperature 1."""

    @property
    def prompt(self) -> int:
        """Number of columns before the answers."""
        return self.rows.shape[1] - self.ids.shape[1]


@dataclass(frozen=True)
class Teacher:
    """The target with its tokenizer."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast

    def tokens(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """The ids of a conversation's (role, text) in the model's own template, ready for the next answer."""
        turns = [{"role": role, "content": text} for role, text in messages]
        encoded = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.tokenizer(encoded, add_special_tokens=False)["input_ids"]
        return ids


def load_teacher(folder: Path) -> Teacher:
    """The target in bfloat16, which is what its folder holds."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True).eval()
    return Teacher(model, AutoTokenizer.from_pretrained(folder, local_files_only=True))


def batch(number: int, teacher: Teacher, seed: int, state: Path) -> Answers:
    """Batch `number`: read from `state` if it is there, else written by the target and kept; a function of the seed."""
    path = state / f"answers-{number:04}.pt"
    if not path.exists():
        write_whole(path, vars(_written(number, teacher, seed)))
    return Answers(**torch.load(path, weights_only=True))


def _written(number: int, teacher: Teacher, seed: int) -> Answers:
    group, place = number // _GROUP, number * _STRIDE % _GROUP
    inputs = [teacher.tokens([("user", text)]) for text in prompts(ROWS * _GROUP, seed * 1_000_003 + group)]
    alike = sorted(inputs, key=len)[place * ROWS : (place + 1) * ROWS]
    return answer(alike, teacher, seed * 1_000_003 + number, NEW_TOKENS)


@torch.no_grad()
def answer(
    inputs: Sequence[Sequence[int]],
    teacher: Teacher,
    seed: int,
    new_tokens: int,
    temperatures: Sequence[float] = _TEMPERATURES,
) -> Answers:
    """Let the target answer tokenised prompts; rows take the temperatures in turn, over the KEPT likeliest ids."""
    generator = torch.Generator().manual_seed(seed)
    end = teacher.tokenizer.eos_token_id
    width = max(map(len, inputs))
    starts = torch.tensor([width - len(each) for each in inputs])
    rows = torch.tensor([[end] * (width - len(each)) + list(each) for each in inputs])
    mask = (torch.arange(width) >= starts[:, None]).long()
    warmth = torch.tensor([temperatures[row % len(temperatures)] for row in range(len(inputs))])[:, None]
    cache, step, kept = DynamicCache(), rows, []
    for _ in range(new_tokens):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -step.shape[1] :]
        logits = teacher.model(
            input_ids=step,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1].float()  # fmt: skip
        values, ids = logits.topk(KEPT)
        kept.append((ids.int(), (values - logits.logsumexp(-1, keepdim=True)).half()))
        step = ids.gather(-1, _pick(values, warmth, generator))
        rows, mask = torch.cat((rows, step), 1), torch.cat((mask, torch.ones_like(step)), 1)
    ids, log_probs = (torch.stack(column, 1) for column in zip(*kept, strict=True))
    return Answers(rows, starts, _ends(rows, width, end), ids, log_probs)


def _pick(values: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """The place of a drawn id among sorted logits [rows, KEPT] for each row; the first at temperature 0: [rows, 1]."""
    drawn = torch.multinomial((values / temperature.clamp(min=1e-3)).softmax(-1), 1, generator=generator)
    return torch.where(temperature == 0, 0, drawn)


def _ends(rows: Tensor, width: int, end: int) -> Tensor:
    """The column behind the first `end` of each answer; behind the last column where there is none."""
    found = rows[:, width:] == end
    first = torch.where(found.any(-1), found.float().argmax(-1) + 1, rows.shape[1] - width)
    return width + first

"""A one-layer target with random weights whose greedy continuation is known in advance.

The attention and the feed-forward layer compute as in any model, and their results are multiplied by zero before they
are added. The next token depends on the last one alone and follows it in a fixed cycle of tokens. A source that looks
up earlier tokens of the text is therefore always right, and every engine must give the same answer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from specdec.errors import ConfigError

CYCLE = 16
"""Tokens of a cycle."""
_POSITIONS = 1024
_SHAPE = {
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cycles:
    """The cycles that the target's tokens follow."""

    cycles: Sequence[Sequence[int]]

    def prompt(self, number: int) -> list[int]:
        """Return two rounds of a cycle.

        Neighbouring numbers have different cycles, and later ones other start positions.
        """
        cycle = self.cycles[number % len(self.cycles)]
        start = number // len(self.cycles) % CYCLE
        return [*cycle[start:], *cycle[:start]] * 2

    def continuation(self, number: int, tokens: int) -> list[int]:
        """Return the greedy tokens after that prompt."""
        prompt = self.prompt(number)
        return [prompt[at % CYCLE] for at in range(tokens)]


def make_target(tokenizer: Path, to: Path) -> Cycles:
    """Write the model to the folder `to`, with the tokenizer of the folder `tokenizer`.

    Raises:
        ConfigError: the tokenizer has fewer than CYCLE tokens of printable ASCII.
    """
    loaded = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    cycles = _cycles(_printable(loaded))
    torch.manual_seed(0)
    config = LlamaConfig(
        **_SHAPE, vocab_size=len(loaded), max_position_embeddings=_POSITIONS, tie_word_embeddings=False,
        eos_token_id=loaded.eos_token_id, bos_token_id=loaded.bos_token_id, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        _follow(model, cycles)
    model.save_pretrained(to)
    loaded.save_pretrained(to)
    return Cycles(cycles)


def _printable(tokenizer: AutoTokenizer) -> list[int]:
    """Return tokens whose text is printable ASCII, so that each decodes to the same text anywhere."""
    special = set(tokenizer.all_special_ids)
    texts = ((token, tokenizer.decode([token])) for token in range(len(tokenizer)) if token not in special)
    return [token for token, text in texts if text.isascii() and text.isprintable() and text]


def _cycles(tokens: list[int]) -> list[list[int]]:
    if len(tokens) < CYCLE:
        raise ConfigError(f"the tokenizer has {len(tokens)} tokens of printable ASCII, fewer than {CYCLE}")
    random.Random(0).shuffle(tokens)
    return [tokens[at : at + CYCLE] for at in range(0, len(tokens) - CYCLE + 1, CYCLE)]


def _follow(model: LlamaForCausalLM, cycles: Sequence[Sequence[int]]) -> None:
    """Make each token's successor the likeliest: its row of the head is the embedding of the token before it.

    Rows have length one, so the product of a row with itself is larger than with any other row.
    """
    (layer,) = model.model.layers
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    rows = torch.nn.functional.normalize(torch.randn_like(model.model.embed_tokens.weight), dim=-1)
    model.model.embed_tokens.weight.copy_(rows)
    model.lm_head.weight.zero_()
    for cycle in cycles:
        before = [cycle[-1], *cycle[:-1]]
        model.lm_head.weight[list(cycle)] = rows[before]

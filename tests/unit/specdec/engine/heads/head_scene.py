"""An engine with a tiny head, and the same head in plain operations over the states of transformers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.engine.batch import Chunk
from specdec.engine.heads.headed import HeadedEngine
from tests.support.tiny_heads import Layout, Options, PlainHead, make_tiny_head

TAPS = (1, 2, 0)
TOKENS = [(7 + 31 * index * index) % 320 for index in range(60)]
VARIANTS = {
    "speculators": ("speculators", Options()),
    "eagle": ("eagle", Options()),
    "fc_norm, norm_output": ("speculators", Options(fc_norm=True, norm_output=True)),
    "norm_before_residual": ("eagle", Options(norm_before_residual=True)),
    "norm_before_fc": ("speculators", Options(norm_before_fc=True)),
}


def states_of(target: Path) -> Callable[[Sequence[int]], Tensor]:
    """Return a function from tokens to the tapped states by transformers [n, taps · hidden]."""
    model = AutoModelForCausalLM.from_pretrained(target)

    def states(tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            found = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return torch.cat([found[tap][0] for tap in TAPS], -1)

    return states


def embedding(target: Path) -> Tensor:
    weight: Tensor = AutoModelForCausalLM.from_pretrained(target).get_input_embeddings().weight.detach()
    return weight


class Scene:
    """An engine with a head, and the same head in plain operations."""

    def __init__(self, target: Path, folder: Path, variant: str = "speculators", kv_bytes: int = 2**20) -> None:
        layout, options = VARIANTS[variant]
        found: Layout = "eagle" if layout == "eagle" else "speculators"
        make_tiny_head(folder, found, options, taps=TAPS)
        self.engine = HeadedEngine.load(
            folder, target, kv_bytes=kv_bytes, wide_threads=None, dtype="float32", device="cpu", threads=None
        )
        self.head = PlainHead(folder, options, embedding(target))

    def open(self, session: str, tokens: Sequence[int] = TOKENS, *, follow: bool = True) -> int:
        """Admit a sequence, and return the number of tokens that the engine knows already."""
        assert self.engine.admit(session, 200, tokens)
        if follow:
            self.engine.follow(session, 200, tokens)
        return self.engine.length(session)

    def compute(self, *parts: tuple[str, Sequence[int]]) -> Tensor:
        """Run a pass over the next tokens of sequences."""
        for session, tokens in parts:
            assert self.engine.reserve(session, self.engine.length(session) + len(tokens))
        return self.engine.forward([Chunk(session, tokens, 1) for session, tokens in parts])

    def draft(self, sessions: Sequence[str], tokens: Sequence[int], drafts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the logits of the drafts of each sequence, given the tokens that were drafted."""
        assert all(self.engine.head.can_draft(session, len(drafts[0]) + 1) for session in sessions)
        logits = [self.engine.head.begin(sessions, tokens)]
        for step in range(len(drafts[0])):
            logits.append(self.engine.head.extend(sessions, range(len(sessions)), [each[step] for each in drafts]))
        self.engine.head.finish(sessions)
        return list(torch.stack(logits, 1))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

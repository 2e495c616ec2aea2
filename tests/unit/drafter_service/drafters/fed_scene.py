"""A verifier's engine, a drafter's head and its table of sessions, joined by messages but without a network."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from drafter_service.config import DrafterSettings
from drafter_service.drafters.feature_drafter import FeatureDrafter
from drafter_service.drafters.fed_head import FedHead
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import DraftedToken, ScheduledSession, StepResult
from drafter_service.sessions.session_table import SessionTable
from specdec.engine import Chunk
from specdec.engine.heads.fusing import FusingEngine
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.features import Features
from specdec.wire.session import Commit, Open
from tests.support.drafter_fakes import ListStream
from tests.support.tiny_heads import Options, PlainHead, make_tiny_head
from tests.support.tiny_models import make_tiny_model

TAPS = (1, 2, 0)
TOKENS = [(7 + 31 * index * index) % 320 for index in range(60)]
OTHERS = TOKENS[::-1]
GREEDY = SamplingParams(temperature=0.0)
OPTIONS = {"dtype": "float32", "device": "cpu", "products": "auto", "attention": "auto", "allow_pickle": False}


class FedScene:
    """One verifier and one drafter. Sequences and sessions have the same names."""

    def __init__(self, folder: Path) -> None:
        target = make_tiny_model(folder / "target", layers=4)
        head = make_tiny_head(folder / "head", options=Options(fc_norm=True), taps=TAPS)
        given = {"kv_bytes": 2**20, "threads": 1, **OPTIONS}
        self.engine = FusingEngine.load(head, target, most_bytes=2**20, wide_threads=None, **given)
        self.fed = FedHead.load(head, target, **given)
        self.drafter = FeatureDrafter("head", self.fed, 64, None)
        settings = DrafterSettings.load(None, {"model": {"path": target}, "kind": "head", "head": head})
        self.table = SessionTable(self.drafter, settings)
        self.stream = ListStream()
        model = AutoModelForCausalLM.from_pretrained(target)
        self._model = model
        self._plain = PlainHead(head, Options(fc_norm=True), model.get_input_embeddings().weight.detach())

    def states(self, tokens: Sequence[int]) -> Tensor:
        """Return the tapped states by transformers [n, taps · hidden]."""
        with torch.inference_mode():
            found = self._model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return torch.cat([found[tap][0] for tap in TAPS], -1)

    def expected(self, tokens: Sequence[int], count: int, drafts: Sequence[int] = ()) -> list[int]:
        """Return the next `count` greedy drafts after a sequence and its first drafts, by the plain head."""
        tapped, chain = self.states(tokens[:-1]), list(drafts)
        while len(chain) < len(drafts) + count:
            chain.append(int(self._plain.drafted(tapped, [*tokens], chain)[-1].argmax()))
        return chain[len(drafts) :]

    def prefill(self, name: str, tokens: Sequence[int]) -> Features | None:
        """Compute all tokens of a new sequence but the last in two passes, and return their features."""
        assert self.engine.admit(name, 200, tokens)
        self.engine.follow(name, 200, tokens)
        half = (self.engine.length(name) + len(tokens) - 1) // 2
        for end in (half, len(tokens) - 1):
            self.compute((name, tokens[self.engine.length(name) : end]))
        return self.taken(name)

    def compute(self, *parts: tuple[str, Sequence[int]]) -> None:
        """Run a pass over the next tokens of sequences."""
        for name, tokens in parts:
            assert self.engine.reserve(name, self.engine.length(name) + len(tokens))
        self.engine.forward([Chunk(name, tokens, 1) for name, tokens in parts])

    def taken(self, name: str) -> Features | None:
        found = self.engine.take(name)
        return None if found is None else Features.of(*found)

    def open(self, name: str, tokens: Sequence[int], features: Features | None, gamma: int = 3, **more: object) -> None:
        fields = {"epoch": 1, "prompt_len": 2, "params": GREEDY, "mode": Mode.COUPLED, "max_len": 200} | more
        self.table.take(self.stream, Open(name, tokens=tuple(tokens), gamma=gamma, features=features, **fields))

    def commit(
        self, name: str, base_len: int, tokens: Sequence[int], features: Features | None, epoch: int = 1
    ) -> None:
        self.table.take(self.stream, Commit(name, epoch, base_len, tuple(tokens), 3, features))

    def session(self, name: str) -> DraftSession:
        return next(session for _, session in self.table if session.session_id == name)

    def step(self, *names: str, most: int = 100) -> list[StepResult]:
        """Run a step of the drafter, and add the drafts to their sessions."""
        batch = []
        for session in map(self.session, names):
            pending = len(session) - self.fed.length(session.key)
            batch.append(ScheduledSession(session, min(pending, most)))
        results = self.drafter.step(self.table.reserve(batch))
        for result in results:
            if isinstance(result, DraftedToken):
                result.session.extend(result.token)
        return results

    def drafts(self, *names: str, count: int = 3) -> list[list[int]]:
        """Return the next `count` drafts of sessions, made in the same steps."""
        for _ in range(count):
            assert all(isinstance(each, DraftedToken) for each in self.step(*names))
        return [self.session(name).tokens_from(len(self.session(name)) - count) for name in names]


def check(scene: FedScene) -> None:
    """Compare the drafts of two sessions with a plain head's: after prompts, rejections, and a second opening."""
    texts = {"a": TOKENS[:12], "b": OTHERS[:12]}
    for name, tokens in texts.items():
        scene.open(name, tokens, scene.prefill(name, tokens))
    assert scene.drafts("a", "b") == [scene.expected(tokens, 3) for tokens in texts.values()]
    scene.compute(*((name, [tokens[-1], *scene.session(name).tokens_from(12)]) for name, tokens in texts.items()))
    for name, recovered in (("a", 200), ("b", 201)):
        texts[name] = [*texts[name], scene.session(name).tokens_from(12)[0], recovered]
        scene.engine.truncate(name, 13)
        scene.commit(name, 12, texts[name][12:], scene.taken(name))
    assert scene.drafts("b", "a") == [scene.expected(texts[name], 3) for name in "ba"]
    for name, bonus in (("a", 202), ("b", 203)):  # full acceptance
        scene.compute((name, [texts[name][-1], *scene.session(name).tokens_from(14)]))
        texts[name] = [*texts[name], *scene.session(name).tokens_from(14), bonus]
        scene.commit(name, 14, texts[name][14:], scene.taken(name))
    reopened = [*texts["a"][:14], *OTHERS[20:26]]  # as far as its slots were computed, not as far as its features came
    scene.engine.release("a")
    scene.open("a", reopened, scene.prefill("a", reopened), epoch=2)
    assert scene.drafts("a", "b") == [scene.expected(reopened, 3), scene.expected(texts["b"], 3)]

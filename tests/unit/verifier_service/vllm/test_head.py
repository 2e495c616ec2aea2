"""A head beside vLLM drafts like a plain head over the target's own states, for any parts that vLLM's passes compute.

The passes are written here in vLLM's layout, with states by transformers. Planted bugs of the states change the drafts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.engine.heads import sequences
from specdec.engine.heads.checkpoint import HeadTarget
from specdec.engine.heads.sequences import HeadSequences
from specdec.errors import ConfigError, InternalError, ModelRefused
from specdec.rules.draft import Draft, Verdict
from specdec.sampling.params import SamplingParams
from tests.support.tiny_heads import Options, PlainHead, make_tiny_head
from tests.support.tiny_models import make_tiny_model
from tests.unit.specdec.engine.heads.head_scene import TAPS, TOKENS, close, embedding, states_of
from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends.batch_plan import HeadUse, Row
from verifier_service.config import VerifierSettings
from verifier_service.vllm.batch import ComputedPiece, Judged
from verifier_service.vllm.head.arguments import head_share, tapped_layers
from verifier_service.vllm.head.drafts import VllmHead, open_head
from verifier_service.vllm.head.states import PassStates

OTHERS = TOKENS[::-1]
PADDING = 5
"""Tokens that vLLM appends to a pass for a fixed shape."""
States = Callable[[Sequence[int]], Tensor]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), layers=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_head(tmp_path_factory.mktemp("head"), taps=TAPS)


def settings(target: Path, head: Path | None, **vllm: Any) -> VerifierSettings:
    values = {"model": {"path": target}, "backend": "vllm", "kv_bytes": 2**22, "vllm": {"engine_args": vllm}}
    return VerifierSettings.load(None, values | ({} if head is None else {"head": head}))


class Scene:
    """A head beside a target on vLLM, whose passes the test writes."""

    def __init__(self, target: Path, folder: Path, states: States | None = None) -> None:
        model = AutoModelForCausalLM.from_pretrained(target)
        embed, output = model.get_input_embeddings().forward, model.get_output_embeddings().weight
        shared = HeadTarget(320, 32, 4, torch.float32, torch.device("cpu"), embed, output.detach)
        self.head: VllmHead = open_head(settings(target, folder), folder, shared, 320, "f")
        self.plain = PlainHead(folder, Options(), embedding(target))
        self.states = states or states_of(target)

    def compute(
        self,
        rows: Mapping[str, Row],
        starts: Mapping[str, int],
        counts: Mapping[str, int],
        verdicts: Mapping[str, Verdict | InternalError] | None = None,
    ) -> None:
        """Run a pass over `counts` tokens of each row from `starts` on, and over its draft if it has a verdict."""
        self.head.drafted(rows)
        computed, first, place = [], 0, {}
        for name, row in rows.items():
            drafts = row.draft.tokens if verdicts and name in verdicts else ()
            tokens = [*row.tokens[: starts[name] + counts[name]], *drafts]
            place[name] = first
            first += len(tokens) - starts[name]
            computed.append(self.states(tokens)[starts[name] :])
        tapped = torch.cat([*computed, torch.full((PADDING, computed[0].shape[1]), torch.nan)])
        pieces = {name: ComputedPiece(starts[name], counts[name], 3) for name in rows}
        judged = {name: Judged(verdict, 3) for name, verdict in (verdicts or {}).items()}
        self.head.take(rows, pieces, judged, PassStates(tapped.chunk(3, -1), place))

    def drafts(self, rows: Sequence[Row], drafts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the logits of the drafts of each row, given the tokens that were drafted."""
        names, head = [row.kv_name for row in rows], self.head._head
        assert all(head.end(row.kv_name) == len(row.tokens) - 1 for row in rows)
        assert all(head.can_draft(name, len(drafts[0]) + 1) for name in names)
        logits = [head.begin(names, [row.tokens[-1] for row in rows])]
        for step in range(len(drafts[0])):
            logits.append(head.extend(names, range(len(names)), [each[step] for each in drafts]))
        head.finish(names)
        return list(torch.stack(logits, 1))


def row_of(name: str, tokens: Sequence[int], gamma: int = 0, draft: Sequence[int] = ()) -> Row:
    row = make_row(name, tuple(tokens), draft=Draft(tuple(draft)), sampling=SamplingParams(temperature=0.0))
    return replace(row, head=HeadUse(follows=True, gamma=gamma))


def check(target: Path, folder: Path, states: States | None = None) -> None:
    """Compare the drafts of two sequences, after pieces, a preemption and a rejection, with those of a plain head."""
    scene, true = Scene(target, folder, states), states_of(target)
    rows = {"a": row_of("a", TOKENS[:13]), "b": row_of("b", OTHERS[:13])}
    scene.compute(rows, {"a": 0, "b": 0}, {"a": 5, "b": 7})
    scene.compute(rows, {"a": 0, "b": 7}, {"a": 13, "b": 6}, {"a": Verdict((50,), 0, 0), "b": Verdict((60,), 0, 0)})
    rows = {
        "b": row_of("b", [*OTHERS[:13], 60], draft=(1, 2, 3)),
        "a": row_of("a", [*TOKENS[:13], 50], draft=(5, 6, 7)),
    }
    verdicts = {"a": Verdict((5, 200), 1, 3), "b": Verdict((1, 2, 201), 2, 3)}
    scene.compute(rows, {"a": 13, "b": 13}, {"a": 1, "b": 1}, verdicts)
    whole = {"a": [*TOKENS[:13], 50, 5, 200], "b": [*OTHERS[:13], 60, 1, 2, 201]}
    found = scene.drafts([row_of(name, whole[name]) for name in "ab"], [[9], [8]])
    for logits, name, drafts in zip(found, "ab", ([9], [8]), strict=True):
        close(logits, scene.plain.drafted(true(whole[name][:-1]), whole[name], drafts))


def test_drafts_follow_from_the_states_of_all_passes(target: Path, folder: Path) -> None:
    check(target, folder)


def test_a_window_begins_after_cached_tokens(target: Path, folder: Path) -> None:
    scene, true = Scene(target, folder), states_of(target)
    scene.compute({"a": row_of("a", TOKENS[:41])}, {"a": 32}, {"a": 9}, {"a": Verdict((7,), 0, 0)})
    tokens = [*TOKENS[:41], 7]
    (found,) = scene.drafts([row_of("a", tokens)], [[9]])
    close(found, scene.plain.drafted(true(tokens[:-1])[32:], tokens[32:], [9]))


def test_each_row_that_asks_has_a_draft(target: Path, folder: Path) -> None:
    scene, true = Scene(target, folder), states_of(target)
    scene.compute({"a": row_of("a", TOKENS[:20])}, {"a": 0}, {"a": 20}, {"a": Verdict((7,), 0, 0)})
    tokens, drafts = [*TOKENS[:20], 7], list[int]()
    for _ in range(3):
        drafts.append(int(scene.plain.drafted(true(tokens[:-1]), tokens, drafts)[-1].argmax()))
    made = scene.head.drafted({"a": row_of("a", tokens, 3), "b": row_of("b", OTHERS, 3), "c": row_of("c", OTHERS)})
    assert made["a"].draft.tokens == tuple(drafts)
    assert made["b"].draft.tokens == ()
    assert made.keys() == {"a", "b"}
    assert made["a"].seconds > 0


def test_many_unread_states_are_read_before_the_next_pass(
    target: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "_MOST_BYTES", 0)
    scene, true = Scene(target, folder), states_of(target)
    long = [TOKENS[at % 60] for at in range(180)]
    for start in range(0, 170, 17):
        scene.compute({"a": row_of("a", long)}, {"a": start}, {"a": 17})
        assert len(scene.head._head._pending["a"]) < 64 + 17
    (found,) = scene.drafts([row_of("a", long[:171])], [[1]])
    close(found, scene.plain.drafted(true(long[:170]), long[:171], [1]))


def test_a_sequence_that_ends_leaves_no_memory_in_use(target: Path, folder: Path) -> None:
    scene = Scene(target, folder)
    scene.compute({"a": row_of("a", TOKENS)}, {"a": 0}, {"a": 60}, {"a": InternalError("no")})
    assert scene.head.memory.live > 0
    scene.head.leave("a")
    scene.head.leave("never seen")
    assert scene.head.memory.live == 0


def test_sequences_without_the_head_are_not_followed(target: Path, folder: Path) -> None:
    scene = Scene(target, folder)
    scene.compute({"a": replace(row_of("a", TOKENS), head=HeadUse())}, {"a": 0}, {"a": 60})
    assert "a" not in scene.head._head


def of_another_row(patch: pytest.MonkeyPatch) -> None:
    """Give two sequences of a pass each other's states."""
    of = PassStates.of
    patch.setattr(PassStates, "of", lambda self, name, count: of(self, {"a": "b", "b": "a"}[name], count))


def of_a_rejected_position(patch: pytest.MonkeyPatch) -> None:
    """Keep the state of a rejected draft in place of an accepted one."""
    of = PassStates.of

    def late(self: PassStates, name: str, count: int) -> Tensor:
        found = of(self, name, count)
        return torch.cat([found[:-1], of(self, name, 4)[3:]]) if count == 2 else found

    patch.setattr(PassStates, "of", late)


def stale_after_preemption(patch: pytest.MonkeyPatch) -> None:
    """Go on with the states from before a preemption."""
    patch.setattr(HeadSequences, "leave", lambda *_: None)


@pytest.mark.parametrize("bug", [of_another_row, of_a_rejected_position, stale_after_preemption])
def test_a_planted_bug_is_noticed(
    bug: Callable[[pytest.MonkeyPatch], None], target: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        check(target, folder)


def test_states_of_the_next_layer_are_noticed(target: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(target)

    def states(tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            found = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return torch.cat([found[tap + 1][0] for tap in TAPS], -1)

    with pytest.raises(AssertionError):
        check(target, folder, states)


def test_layers_and_share_are_known_before_loading(target: Path, tmp_path: Path) -> None:
    made = settings(target, make_tiny_head(tmp_path, taps=(3, 1, 1)))
    assert tapped_layers(made) == (3, 1, 1)
    assert head_share(made) == 2**22 // 5
    assert (tapped_layers(settings(target, None)), head_share(settings(target, None))) == ((), 0)


def test_a_head_that_vllm_cannot_feed_is_refused_by_name(target: Path, folder: Path) -> None:
    with pytest.raises(ModelRefused, match="the head reads layer 0, whose input vllm does not hand out"):
        tapped_layers(settings(target, folder))
    with pytest.raises(ConfigError, match="head: a target with a tensor_parallel_size above 1 runs no head"):
        tapped_layers(settings(target, folder, tensor_parallel_size=2))

"""A draft is unchanged after transmission, to the bit, and inconsistent arrays are refused."""

from array import array
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import FieldInvalid
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.draft import Draft, DraftStep, SparseProbs, uniform_probs
from specdec.rules.speculation import Mode
from specdec.trees.tree import ROOT, Tree, TreeDraft
from specdec.wire.draft import DraftTokens, draft_from_pb, draft_to_pb
from verifier_service.drafts.draft_buffer import checked

supports = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(1, 65535), min_size=1, max_size=5)


def _message(draft: Draft | TreeDraft) -> DraftTokens:
    return DraftTokens("s", epoch=3, base_len=7, prefix_hash=2**64 - 1, draft=draft)


def _draft(rows: list[dict[int, int]]) -> Draft:
    probs = tuple(SparseProbs(torch.tensor(list(row)), torch.tensor(list(row.values()))) for row in rows)
    return Draft(tuple(next(iter(row)) for row in rows), probs)


def _sent(message: DraftTokens) -> pb.DraftTokens:
    return pb.DraftTokens.FromString(draft_to_pb(message).SerializeToString())


@given(st.lists(supports, max_size=4))
def test_tokens_ids_and_weights_survive_the_wire(rows: list[dict[int, int]]) -> None:
    draft = _draft(rows)
    received = draft_from_pb(_sent(_message(draft))).draft
    assert received.tokens == draft.tokens
    for theirs, ours in zip(received.probs, draft.probs, strict=True):
        assert theirs.ids.equal(ours.ids)
        assert theirs.weights.equal(ours.weights)


def test_the_fence_survives_the_wire() -> None:
    received = draft_from_pb(_sent(_message(_draft([{5: 9}]))))
    assert (received.session_id, received.epoch) == ("s", 3)
    assert (received.base_len, received.prefix_hash) == (7, 2**64 - 1)


def test_a_draft_without_distributions_is_token_ids_alone() -> None:
    sent = _sent(_message(Draft((4, 5))))
    assert not sent.support_sizes
    assert not sent.support_ids
    assert not sent.support_weights
    received = draft_from_pb(sent).draft
    assert (received.tokens, received.probs) == ((4, 5), ())


def test_a_uniform_distribution_is_sent_as_the_number_of_its_ids() -> None:
    listed = _draft([{7: 9, 8: 2}])
    draft = Draft((3, 7, 149_999), (uniform_probs(150_000), *listed.probs, uniform_probs(150_000)))
    sent = _sent(_message(draft))
    assert (sent.uniform_ids, list(sent.support_sizes)) == (150_000, [0, 2, 0])
    assert sent.ByteSize() < 100
    received = draft_from_pb(sent).draft
    assert [law is not None and law.uniform for law in received.probs] == [True, False, True]
    assert all(law.ids.equal(own.ids) and law.weights.equal(own.weights) for law, own in _pairs(received, draft))


def test_a_uniform_distribution_over_too_many_ids_is_refused_early() -> None:
    with pytest.raises(FieldInvalid, match="at most 1048576 ids"):
        draft_from_pb(pb.DraftTokens(tokens=b"\0\0\0\0", support_sizes=[0], uniform_ids=2**31))
    nothing = draft_from_pb(pb.DraftTokens(tokens=b"\0\0\0\0", support_sizes=[0])).draft
    with pytest.raises(FieldInvalid):
        checked(nothing, Mode.REJECTION, None, 8)
    wide = draft_from_pb(pb.DraftTokens(tokens=b"\0\0\0\0", support_sizes=[0], uniform_ids=9)).draft
    with pytest.raises(FieldInvalid, match="more ids than the vocabulary"):
        checked(wide, Mode.REJECTION, None, 8)


def _pairs(received: Draft | TreeDraft, draft: Draft) -> Iterator[tuple[SparseProbs, SparseProbs]]:
    for law, own in zip(received.probs, draft.probs, strict=True):
        assert law is not None
        yield law, own


def test_the_entropy_of_each_step_survives_the_wire() -> None:
    steps = (DraftStep(0.5, 4), None, DraftStep(1.0, 1))
    received = draft_from_pb(_sent(_message(Draft((4, 5, 6), steps=steps)))).draft
    assert isinstance(received, Draft)
    assert received.steps == steps


@pytest.mark.parametrize(
    ("entropies", "gammas"), [([0.5], [4]), ([0.5, 1.5], [4, 4]), ([0.5, -0.1], [4, 4]), ([0.5, 0.5], [4])]
)
def test_steps_that_make_no_sense_are_refused(entropies: list[float], gammas: list[int]) -> None:
    message = _sent(_message(Draft((4, 5))))
    message.entropies, message.gammas = array("f", entropies).tobytes(), array("H", gammas).tobytes()
    with pytest.raises(FieldInvalid, match="entropies"):
        draft_from_pb(message)


def test_a_token_costs_six_bytes_per_id_of_its_support() -> None:
    sizes = [len(_sent(_message(_draft([dict.fromkeys(range(k), 7)]))).SerializeToString()) for k in (40, 41)]
    assert sizes[1] - sizes[0] == 6


@pytest.mark.parametrize(
    "broken",
    [
        {"support_sizes": [1, 1]},
        {"support_sizes": [1, 1, 1], "support_ids": b"", "support_weights": b""},
        {"support_sizes": [3]},
        {"support_ids": b"\x00" * 7},
        {"support_weights": b"\x00" * 3},
        {"support_sizes": []},
        {"tokens": b"\x00" * 4},
        {"tokens": b"\x00" * 3},
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(broken: dict[str, object]) -> None:
    whole = {
        "tokens": bytes(8),
        "support_sizes": [2, 1],
        "support_ids": bytes(12),
        "support_weights": bytes(6),
    }
    assert len(draft_from_pb(pb.DraftTokens(**whole)).draft.probs) == 2  # type: ignore[arg-type]
    with pytest.raises(FieldInvalid):
        draft_from_pb(pb.DraftTokens(**(whole | broken)))  # type: ignore[arg-type]


def test_a_tree_survives_the_wire_with_the_q_of_each_family() -> None:
    law = SparseProbs(torch.tensor([3, 8]), torch.tensor([5, 65535]))
    tree = TreeDraft(Tree((ROOT, ROOT, 1)), (3, 8, 3), (law, None, law, None))
    received = draft_from_pb(_sent(_message(tree))).draft
    assert isinstance(received, TreeDraft)
    assert (received.tree, received.tokens) == (tree.tree, tree.tokens)
    assert [None if each is None else each.weights.tolist() for each in received.probs] == [
        [5, 65535],
        None,
        [5, 65535],
        None,
    ]


def test_a_tree_that_was_not_sampled_is_tokens_and_parents() -> None:
    received = draft_from_pb(_sent(_message(TreeDraft(Tree((ROOT, ROOT)), (3, 8))))).draft
    assert isinstance(received, TreeDraft)
    assert received.probs == ()


def test_parents_of_no_tree_are_refused() -> None:
    sent = _sent(_message(TreeDraft(Tree((ROOT, ROOT)), (3, 8))))
    sent.parents[0] = 1
    with pytest.raises(FieldInvalid, match="parent of node 0"):
        draft_from_pb(sent)

"""A q̂ over the whole vocabulary is the same integers on both sides, and those are what the token was drawn from."""

import pytest
import torch
from torch import Tensor

from protos.drafter.v1 import drafter_pb2 as pb
from specdec.errors import FieldInvalid, InternalError
from specdec.rules.dense import Dense
from specdec.rules.draft import Draft, SparseProbs
from specdec.rules.params import Mode
from specdec.rules.proposal import compress, propose
from specdec.wire.draft import DraftTokens, draft_from_pb, draft_to_pb

FORMS = list(Dense)
VOCAB = 500


def law(rows: int, scale: float = 3.0) -> Tensor:
    return (scale * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(5))).softmax(-1)


def sent(draft: Draft) -> pb.DraftTokens:
    packed = draft_to_pb(DraftTokens("s", epoch=1, base_len=3, prefix_hash=9, draft=draft))
    return pb.DraftTokens.FromString(packed.SerializeToString())


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
@pytest.mark.parametrize("form", FORMS)
def test_what_was_drawn_from_arrives_to_the_bit(form: Dense, mode: Mode) -> None:
    q = law(6, scale=8.0)
    tokens, probs = propose(mode, q, range(6), [4] * 6, form, starts=[4] * 6)
    received = draft_from_pb(sent(Draft(tuple(tokens), tuple(probs)))).draft
    assert received.tokens == tuple(tokens)
    for theirs, ours in zip(received.probs, probs, strict=True):
        assert theirs.form is form
        assert torch.equal(theirs.ids, ours.ids)
        assert torch.equal(theirs.weights, ours.weights)
    assert all(token in row.ids for token, row in zip(tokens, received.probs, strict=True))


@pytest.mark.parametrize(("form", "dtype"), [(Dense.FP16, torch.float16), (Dense.FP32, torch.float32)])
def test_the_weights_are_q_rounded_to_the_form(form: Dense, dtype: torch.dtype) -> None:
    q = law(3, scale=8.0)
    for row, probs in zip(q, compress(q, form), strict=True):
        found = torch.zeros(VOCAB, dtype=torch.float64)
        found[probs.ids] = probs.weights.double() * 2.0**-form.bits
        torch.testing.assert_close(found, row.to(dtype).double(), rtol=0, atol=2.0**-41)
        assert 1 <= int(probs.weights.min()) <= int(probs.weights.max()) <= probs.max_weight


@pytest.mark.parametrize("form", FORMS)
def test_a_one_hot_row_is_a_point_mass(form: Dense) -> None:
    (probs,) = compress(torch.eye(VOCAB)[[7]], form)
    assert (probs.ids.tolist(), probs.weights.tolist()) == ([7], [1 << form.bits])
    (received,) = draft_from_pb(sent(Draft((7,), (probs,)))).draft.probs
    assert (received.ids.tolist(), received.weights.tolist()) == ([7], [1 << form.bits])


@pytest.mark.parametrize(("form", "size"), [(Dense.FP16, 2), (Dense.FP32, 4)])
def test_a_token_costs_its_whole_vocabulary(form: Dense, size: int) -> None:
    draft = Draft((1, 2), tuple(compress(law(2, scale=0.1), form)))
    assert len(getattr(sent(draft), form.value)) == 2 * size * VOCAB


def test_coupled_drafts_consider_every_id() -> None:
    q = law(8)
    assert propose(Mode.COUPLED, q, range(8), [0] * 8, Dense.FP32) == propose(Mode.COUPLED, q, range(8), [0] * 8, VOCAB)


def test_one_draft_has_one_form() -> None:
    q = law(1)
    mixed = Draft((1, 2), (compress(q, Dense.FP16)[0], compress(q, 8)[0]))
    with pytest.raises(InternalError):
        sent(mixed)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "values",
    [
        [[float("nan"), 0.5]],
        [[float("inf"), 0.5]],
        [[-0.5, 0.5]],
        [[0.0, 0.0]],
    ],
    ids=["nan", "infinite", "negative", "nothing"],
)
def test_what_is_no_distribution_is_refused(form: Dense, values: list[list[float]]) -> None:
    dtype = torch.float16 if form is Dense.FP16 else torch.float32
    message = pb.DraftTokens(tokens=bytes(4))
    setattr(message, form.value, torch.tensor(values, dtype=dtype).numpy().tobytes())
    with pytest.raises(FieldInvalid) as refused:
        draft_from_pb(message)
    assert refused.value.param == form.value


@pytest.mark.parametrize(
    "message",
    [
        pb.DraftTokens(tokens=bytes(8), dense_fp32=bytes(12)),
        pb.DraftTokens(tokens=bytes(4), dense_fp16=bytes(3)),
        pb.DraftTokens(dense_fp16=bytes(2)),
        pb.DraftTokens(tokens=bytes(4), dense_fp32=torch.tensor([1e-30]).numpy().tobytes()),
        pb.DraftTokens(tokens=bytes(4), dense_fp16=bytes(2), dense_fp32=bytes(4)),
        pb.DraftTokens(tokens=bytes(4), dense_fp16=bytes(2), support_sizes=[1], support_ids=bytes(4)),
    ],
    ids=["ragged", "half a value", "no token", "off the grid", "two forms", "dense and sparse"],
)
def test_arrays_that_do_not_fit_together_are_refused(message: pb.DraftTokens) -> None:
    with pytest.raises(FieldInvalid):
        draft_from_pb(message)


def test_a_weight_is_bounded_by_its_form() -> None:
    weights = torch.tensor([65535])
    assert [SparseProbs(weights, weights, form).max_weight for form in (None, *FORMS)] == [65535, 2**24, 2**40]

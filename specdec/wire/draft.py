"""Translation of draft tokens and their q̂ to and from protobuf, with few copies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from specdec.errors import FieldInvalid
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.draft import Draft, DraftStep, SparseProbs, uniform_probs
from specdec.rules.padding import NO_PROBS
from specdec.trees.tree import Tree, TreeDraft
from specdec.wire.session import SessionMessage
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes

PROTOCOL = 1
"""Version of the protocol between verifier and drafter. Both sides must use the same version."""
_MOST_IDS = 2**20
"""Most ids of a uniform distribution, which bounds the memory that a message of a few bytes can claim."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftTokens(SessionMessage):
    """Consecutive draft tokens of one session, tied to the exact prefix that they continue."""

    base_len: int
    """Number of committed and drafted tokens before the first one here."""
    prefix_hash: int
    """`PrefixHash` value of those tokens."""
    draft: Draft | TreeDraft
    """Tokens, with the q̂ of each in a mode that needs it. A tree has one q̂ per set of siblings."""


def draft_to_pb(tokens: DraftTokens) -> pb.DraftTokens:
    """Return the message of a draft. Without distributions, it holds only token ids."""
    probs = [NO_PROBS if law is None or law.uniform else law for law in tokens.draft.probs]
    uniform = max((len(law.ids) for law in tokens.draft.probs if law is not None and law.uniform), default=0)
    return pb.DraftTokens(
        session_id=tokens.session_id,
        epoch=tokens.epoch,
        base_len=tokens.base_len,
        prefix_hash=tokens.prefix_hash,
        tokens=tokens_to_bytes(tokens.draft.tokens),
        support_sizes=[len(row.ids) for row in probs],
        support_ids=_pack([row.ids for row in probs], np.int32),
        support_weights=_pack([row.weights for row in probs], np.uint16),
        parents=tokens.draft.tree.parents if isinstance(tokens.draft, TreeDraft) else (),
        uniform_ids=uniform,
        **({} if isinstance(tokens.draft, TreeDraft) else _steps_to_pb(tokens.draft.steps)),
    )


def draft_from_pb(message: pb.DraftTokens) -> DraftTokens:
    """Return the draft of a message, with tensors on the host.

    Raises:
        FieldInvalid: the lengths of its arrays do not fit together, or the parents are those of no tree.
    """
    tokens = tuple(tokens_from_bytes(message.tokens))
    if message.parents:
        laws = tuple(law if len(law.ids) else None for law in _probs(message, len(tokens) + 1))
        draft: Draft | TreeDraft = TreeDraft(Tree(tuple(message.parents)), tokens, laws)
    else:
        draft = Draft(tokens, tuple(_chain_probs(message, len(tokens))), _steps(message, len(tokens)))
    return DraftTokens(
        session_id=message.session_id,
        epoch=message.epoch,
        base_len=message.base_len,
        prefix_hash=message.prefix_hash,
        draft=draft,
    )


def _chain_probs(message: pb.DraftTokens, count: int) -> Iterable[SparseProbs]:
    """Return the q̂ of each token of a chain; a support size of 0 stands for a uniform one, if the message has any."""
    if not message.uniform_ids:
        return _probs(message, count)
    if message.uniform_ids > _MOST_IDS:
        raise FieldInvalid(f"at most {_MOST_IDS} ids, got {message.uniform_ids}", "uniform_ids")
    uniform = uniform_probs(message.uniform_ids)
    return (law if len(law.ids) else uniform for law in _probs(message, count))


def _probs(message: pb.DraftTokens, count: int) -> Iterable[SparseProbs]:
    sizes = list(message.support_sizes)
    if sizes and len(sizes) != count:
        raise FieldInvalid(f"{count} distributions are due, got {len(sizes)}", "support_sizes")
    ids = _unpack(message.support_ids, np.int32, sizes, "support_ids")
    weights = _unpack(message.support_weights, np.uint16, sizes, "support_weights")
    return (SparseProbs(*row) for row in zip(ids, weights, strict=True))


def _steps_to_pb(steps: Sequence[DraftStep | None]) -> dict[str, bytes]:
    """Return the columns of the steps, keyed by field."""
    entropies = np.array([np.nan if each is None else each.entropy for each in steps], np.float32)
    gammas = np.array([0 if each is None else each.gamma for each in steps], np.uint16)
    return {"entropies": entropies.tobytes(), "gammas": gammas.tobytes()}


def _steps(message: pb.DraftTokens, count: int) -> tuple[DraftStep | None, ...]:
    """Return the steps of a message with `count` tokens; empty if it has none. Reject an entropy out of range."""
    if not message.entropies:
        return ()
    if (len(message.entropies), len(message.gammas)) != (4 * count, 2 * count):
        raise FieldInvalid(f"entropies and gammas must have {count} values each", "entropies")
    entropies = np.frombuffer(message.entropies, np.float32).tolist()
    gammas = np.frombuffer(message.gammas, np.uint16).tolist()
    if not all(0.0 <= each <= 1.0 for each in entropies if each == each):
        raise FieldInvalid("entropies must be in [0, 1]", "entropies")
    return tuple(
        DraftStep(entropy, gamma) if entropy == entropy else None
        for entropy, gamma in zip(entropies, gammas, strict=True)
    )


def _pack(rows: Sequence[Tensor], dtype: DTypeLike) -> bytes:
    return np.concatenate([row.numpy() for row in rows]).astype(dtype).tobytes() if rows else b""


def _unpack(data: bytes, dtype: DTypeLike, sizes: Sequence[int], field: str) -> list[Tensor]:
    """Return the values as int64, one tensor per size.

    They are converted by NumPy, because each operation of PyTorch releases the interpreter lock and then waits for the
    thread that runs the model.
    """
    if len(data) != sum(sizes) * np.dtype(dtype).itemsize:
        raise FieldInvalid(f"{field} must be {sum(sizes)} values, got {len(data)} bytes", field)
    values = np.frombuffer(data, dtype).astype(np.int64)
    return [torch.from_numpy(values[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)]

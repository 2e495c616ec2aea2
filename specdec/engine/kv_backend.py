"""Where keys and values lie and how a pass over them runs: what differs between devices, behind two names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from specdec.engine.batch import Batch
from specdec.engine.decoder import Decoder
from specdec.engine.kv_layout import KvLayout
from specdec.engine.kv_store import H, KvStore

Run = Callable[[Sequence[H], Batch], Tensor]
"""Run a packed pass: logits of the tokens `batch.keep`, float32 [len(keep), vocab_size], a copy the caller owns.

The new tokens' keys and values are written behind each session's; that they are there now is for the caller to note.
"""


@dataclass(frozen=True, slots=True)
class KvBackend(Generic[H]):
    """The memory of an engine, and how passes run over it."""

    store: KvStore[H]
    run: Run[H]
    warm: Callable[[], None]
    """What is worth doing before the first session comes."""


Open = Callable[[Decoder, KvLayout, int], KvBackend[H]]
"""Make a place for a model's keys and values within so many bytes."""

"""Sessions in slabs, and passes that go over them one session and layer at a time: measured best on a CPU."""

from collections.abc import Sequence

from torch import Tensor

from specdec.engine.attention import attending
from specdec.engine.batch import Batch
from specdec.engine.decoder import Decoder
from specdec.engine.host.packed_step import PackedStep, SlabSpan
from specdec.engine.host.slab import Slab
from specdec.engine.host.slab_store import SlabStore
from specdec.engine.kv_backend import KvBackend
from specdec.engine.kv_layout import KvLayout


def open_host(decoder: Decoder, layout: KvLayout, budget: int) -> KvBackend[Slab]:
    """See `place.Open`."""

    def run(slabs: Sequence[Slab], batch: Batch) -> Tensor:
        spans = [SlabSpan(*share) for share in zip(slabs, batch.counts, batch.trees, strict=True)]
        with attending(PackedStep(spans)):
            return decoder.logits(batch.tokens, batch.positions, batch.keep)

    return KvBackend(SlabStore(layout, budget), run, warm=lambda: None)

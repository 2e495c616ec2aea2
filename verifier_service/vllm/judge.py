"""Our verdicts where vLLM would sample: logits of a batch in its layout -> one verdict for each row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
import torch
from torch import Tensor

from specdec.errors import InternalError, NoDistribution
from specdec.rules.draft import NO_DRAFT, Verdict
from verifier_service.batching.batch_plan import Row
from verifier_service.batching.target_pass import NO_TOKEN, judge_batch
from verifier_service.vllm.batch import Judged, PassRows

NO_PLACE = -1
"""Fills a line of the answer behind its last token."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Lines:
    """The logits of a batch as vLLM lays them out: for each request, one line more than it has drafts."""

    requests: Sequence[str]
    counts: Sequence[int]
    """Drafts of each request."""
    drafts: Sequence[int]
    """The drafted ids of all requests, one request after the other."""

    def own(self, index: int, row: Row) -> Row:
        """The row of a request with the draft as far as it was computed, and without one that vLLM replaced.

        vLLM cuts drafts that do not fit, and puts placeholders where it wants a fixed shape: ids that are not those of
        the row were drawn by nobody, so a verdict on them would bias the output.
        """
        first = sum(self.counts[:index])
        sent = tuple(self.drafts[first : first + self.counts[index]])
        draft = row.draft.cut(len(sent))
        return replace(row, draft=draft if draft.tokens == sent else NO_DRAFT)

    def first(self, index: int) -> int:
        """The first line of a request."""
        return sum(self.counts[:index]) + index


def judge(batch: PassRows, lines: Lines, logits: Tensor) -> dict[str, Judged]:
    """The verdict on each row of the batch, by request; `logits` [Σ(count + 1), at least vocab_size]."""
    places = [index for index, request in enumerate(lines.requests) if request in batch.rows]
    rows = [lines.own(index, batch.rows[lines.requests[index]]) for index in places]
    kept = [lines.first(index) + at for index, row in zip(places, rows, strict=True) for at in range(_size(row))]
    if not rows:
        return {}
    own = logits[:, : batch.vocab_size].float()
    if kept != list(range(len(own))):
        own = own[torch.tensor(kept, device=own.device)]
    found = zip(places, rows, _verdicts(rows, own), strict=True)
    return {lines.requests[index]: Judged(result, len(row.draft.tokens)) for index, row, result in found}


def tokens_of(judged: Mapping[str, Judged], lines: Lines) -> Tensor:
    """The tokens of each request as vLLM takes them, int32 [requests, most drafts + 1]; 0 where there is no verdict.

    vLLM does not use the token of a request that still reads its prompt, and one without a verdict is ended.
    """
    out = torch.full((len(lines.requests), max(lines.counts, default=0) + 1), NO_PLACE, dtype=torch.int32)
    out[:, 0] = 0
    for index, request in enumerate(lines.requests):
        found = judged.get(request)
        if found is not None and isinstance(found.result, Verdict):
            tokens = found.result.tokens
            out[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    return out


def _size(row: Row) -> int:
    return len(row.draft.tokens) + 1


def _verdicts(rows: Sequence[Row], logits: Tensor) -> list[Verdict | InternalError]:
    """The verdicts on all rows at once; where that fails, on each alone, so that an error stays with its row."""
    try:
        return list(judge_batch(rows, logits))
    except Exception as error:  # noqa: BLE001 - whatever a row does, the engine and the other rows live on
        if len(rows) == 1:
            return [_without_draft(rows[0], logits, error)]
        each = zip(rows, logits.split_with_sizes([_size(row) for row in rows]), strict=True)
        return [_verdicts([row], own)[0] for row, own in each]


def _without_draft(row: Row, logits: Tensor, error: Exception) -> Verdict | InternalError:
    """The verdict without the draft, which was no good; an error where the target has no distribution."""
    if isinstance(error, NoDistribution):
        _log.error("no_distribution", session=row.kv_name, error=str(error))
        return NoDistribution(NO_TOKEN)
    if row.draft.tokens:
        _log.warning("draft_unusable", session=row.kv_name, error=str(error))
        return _verdicts([replace(row, draft=NO_DRAFT)], logits[:1])[0]
    _log.error("verdict_failed", session=row.kv_name, exc_info=error)
    return InternalError("the model failed on this sequence")

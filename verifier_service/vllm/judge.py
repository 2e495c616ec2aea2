"""Verdicts in place of vLLM's sampling: logits of a batch in vLLM's layout -> one verdict for each row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
import torch
from torch import Tensor

from specdec.errors import AllMasked, InternalError, NoDistribution
from specdec.rules.draft import NO_DRAFT, Verdict
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.target_pass import NO_TOKEN, judge_apart
from verifier_service.vllm.batch import Judged, PassRows

NO_PLACE = -1
"""Padding after the last token of a line in the answer."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Lines:
    """Layout of a batch's logits in vLLM: each request has one line more than it has drafts."""

    requests: Sequence[str]
    counts: Sequence[int]
    """Number of drafts of each request."""
    drafts: Sequence[int]
    """Drafted ids of all requests, one request after the other."""

    def __iter__(self) -> Iterator[tuple[str, int, Sequence[int]]]:
        """Yield each request with its first line and its drafts."""
        line = 0
        for index, (request, count) in enumerate(zip(self.requests, self.counts, strict=True)):
            yield request, line, self.drafts[line - index : line - index + count]
            line += count + 1


def judge(batch: PassRows, lines: Lines, logits: Tensor) -> dict[str, Judged]:
    """Return the verdict on each row of the batch, by request; `logits` [Σ(count + 1), at least vocab_size]."""
    judged, kept, rows = dict[str, Judged](), list[int](), dict[str, Row]()
    for request, line, drafts in lines:
        if (row := batch.rows.get(request)) is None:
            continue
        try:
            rows[request] = _computed(row, drafts)
            kept += range(line, line + _size(rows[request]))
        except InternalError as error:
            _log.error("foreign_draft", session=row.kv_name)
            judged[request] = Judged(error, 0)
    own = logits[:, : batch.vocab_size].float()
    if kept != list(range(len(own))):
        own = own[torch.tensor(kept, dtype=torch.int64, device=own.device)]
    verdicts = _verdicts(list(rows.values()), own) if rows else []
    for (request, row), result in zip(rows.items(), verdicts, strict=True):
        judged[request] = Judged(result, len(row.draft.tokens))
    return judged


def tokens_of(judged: Mapping[str, Judged], lines: Lines) -> Tensor:
    """Return the tokens of each request for vLLM, int32 [requests, most drafts + 1]; 0 if there is no verdict.

    vLLM ignores the token of a request whose prompt is incomplete. Other requests without a verdict are ended.
    """
    width, places = max(lines.counts, default=0) + 1, list[int]()
    for request in lines.requests:
        found = judged.get(request)
        tokens = found.result.tokens if found is not None and isinstance(found.result, Verdict) else (0,)
        places += (*tokens, *(NO_PLACE,) * (width - len(tokens)))
    return torch.tensor(places, dtype=torch.int32).view(-1, width)


def _computed(row: Row, drafts: Sequence[int]) -> Row:
    """Return the row with its draft cut to the tokens that vLLM computed.

    Raises:
        InternalError: vLLM computed other ids. They were not drawn from the row's q̂, so a verdict on them would bias
            the output. A plain token would bias it too, because whether the ids agree depends on the draft.
    """
    own = row if len(drafts) >= len(row.draft.tokens) else replace(row, draft=row.draft.cut(len(drafts)))
    if own.draft.tokens != tuple(drafts[: len(own.draft.tokens)]):
        raise InternalError("vllm computed other drafts than those of the row")
    return own


def _size(row: Row) -> int:
    return len(row.draft.tokens) + 1


def _verdicts(rows: Sequence[Row], logits: Tensor) -> list[Verdict | InternalError]:
    """Return the verdicts on all rows, or the error of a row that has none."""
    own = logits.split_with_sizes([_size(row) for row in rows])
    return [
        judged if isinstance(judged, Verdict) else _without_draft(row, logits, judged)
        for row, logits, judged in zip(rows, own, judge_apart(rows, logits), strict=True)
    ]


def _without_draft(row: Row, logits: Tensor, error: Exception) -> Verdict | InternalError:
    """Return the verdict on a failed row without its draft, or an error if the target has no distribution."""
    if isinstance(error, AllMasked):
        return error
    if isinstance(error, NoDistribution):
        _log.error("no_distribution", session=row.kv_name, error=str(error))
        return NoDistribution(NO_TOKEN)
    if row.draft.tokens:
        _log.warning("draft_unusable", session=row.kv_name, error=str(error))
        return _verdicts([replace(row, draft=NO_DRAFT)], logits[:1])[0]
    _log.error("verdict_failed", session=row.kv_name, exc_info=error)
    return InternalError("the model failed on this sequence")

"""Draft head of a target on vLLM, which drafts before a pass and takes the states after it."""

import time
from collections.abc import Mapping
from pathlib import Path

from specdec.engine.cpu.product import pack_products
from specdec.engine.heads.checkpoint import HeadTarget, load_head
from specdec.engine.heads.head_kv import HeadKv
from specdec.engine.heads.sequences import HeadSequences
from specdec.engine.kv.pool import KvMemory
from specdec.rules.draft import Verdict
from verifier_service.backends.batch_plan import HeadDraft, Row
from verifier_service.backends.head_drafter import HeadDrafter
from verifier_service.config import VerifierSettings
from verifier_service.vllm.batch import ComputedPiece, Judged
from verifier_service.vllm.head.arguments import head_share
from verifier_service.vllm.head.states import PassStates


class VllmHead:
    """Drafts for rows before a pass of vLLM, and takes the states of the pass after it.

    A sequence is followed from its first piece on. If that begins after cached tokens, whose states vLLM does not
    have, so does the head's window. A preempted sequence begins again.
    """

    def __init__(self, head: HeadSequences) -> None:
        self.step_seconds = head.step_seconds()
        """Duration of a step of one sequence."""
        self._head = head
        self._drafter = HeadDrafter(head)

    @property
    def memory(self) -> KvMemory:
        """Use of the head's memory, in bytes."""
        return self._head.memory

    def leave(self, kv_name: str) -> None:
        """Stop following a sequence, if the head does."""
        self._head.leave(kv_name)

    def drafted(self, rows: Mapping[str, Row]) -> dict[str, HeadDraft]:
        """Return the draft of each row that requests one, by vLLM's request id. Read the states that have become many.

        Args:
            rows: rows of the next pass, by request id.
        """
        following = {row.kv_name: row.tokens[self._head.end(row.kv_name)] for row in rows.values() if self._has(row)}
        self._head.catch_up(following)
        asking = {row: request for request, row in rows.items() if row.head.gamma}
        if not asking:
            return {}
        began = time.perf_counter()
        drafts = self._drafter.drafts(list(asking))
        seconds = time.perf_counter() - began
        return {asking[row]: HeadDraft(draft, seconds) for row, draft in drafts.items()}

    def take(
        self,
        rows: Mapping[str, Row],
        pieces: Mapping[str, ComputedPiece],
        judged: Mapping[str, Judged],
        states: PassStates,
    ) -> None:
        """Take the states of a pass: those of the committed tokens of the followed sequences.

        Args:
            rows: rows of the pass, by request id.
            pieces: pieces that the pass computed, by request id.
            judged: verdicts of the pass, by request id.
            states: states that the pass computed.
        """
        for request, piece in pieces.items():
            row, found = rows[request], judged.get(request)
            if not row.head.follows:
                continue
            if self._has(row) and self._head.end(row.kv_name) != piece.start:
                self._head.leave(row.kv_name)
            if not self._has(row):
                self._head.follow(row.kv_name, row.limit, row.tokens, row.call.cache_salt, piece.start)
            if not self._has(row):
                continue
            tokens = [*row.tokens[piece.start : piece.start + piece.count]]
            if found is not None and isinstance(found.result, Verdict):
                tokens += found.result.tokens[:-1]  # the pass has computed the accepted drafts, too
            self._head.append(row.kv_name, tokens, states.of(request, len(tokens)))

    def _has(self, row: Row) -> bool:
        return row.kv_name in self._head


def open_head(
    settings: VerifierSettings, folder: Path, target: HeadTarget, vocab_size: int, fingerprint: str
) -> VllmHead:
    """Load the head in a folder.

    Args:
        settings: settings of the verifier.
        folder: folder of the head.
        target: parts of the target that the head shares.
        vocab_size: number of valid ids of the target.
        fingerprint: fingerprint of the served target.

    Raises:
        ModelRefused: the head was made for another target, or it cannot be served on the target's device.
    """
    options = settings.model
    head = load_head(folder, target, allow_pickle=options.allow_pickle)
    name = f"{fingerprint}\0{folder.resolve()}"
    kv = HeadKv(head, target.dtype, target.device, head_share(settings), options.attention, name)
    pack_products(head, options.products)
    return VllmHead(HeadSequences(head, kv, vocab_size))

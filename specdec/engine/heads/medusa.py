"""Medusa heads (arXiv 2401.10774): one pass over the target's last state guesses several tokens, each by its own head.

Head k reads the state h_t that the target has after token t, after its last norm, and guesses token t + k + 2, whatever
is drafted before it. So a head has no keys and values, and its later drafts cost an output layer alone.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from specdec.engine.heads.checkpoint import HeadTarget, fill, read_weights
from specdec.engine.heads.config import MedusaConfig
from specdec.engine.kv.pool import KvMemory
from specdec.errors import ModelRefused

_FILES = ("medusa_lm_head.safetensors", "model.safetensors", "medusa_lm_head.pt", "pytorch_model.bin")
_SHARED, _FIRST, _IDS = "lm_head.weight", "lm_heads.0.weight", "token_map"


class _Block(nn.Module):
    """Residual layers of one head."""

    def __init__(self, width: int, layers: int, *, bias: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=bias) for _ in range(layers))

    def forward(self, states: Tensor) -> Tensor:
        """[B, hidden] -> [B, hidden]"""
        for layer in self.layers:
            states = states + silu(layer(states))
        return states


class MedusaHead(nn.Module):
    """The heads of one target."""

    def __init__(self, config: MedusaConfig, target: HeadTarget, ids: Tensor | None, *, bias: bool) -> None:
        """Create heads whose weights are not set.

        Args:
            config: options of the heads.
            target: the target, whose sizes they have.
            ids: the target's id of each draft id, int64 [draft ids]; None if the heads draft for all ids.
            bias: whether the layers of the blocks have biases.
        """
        super().__init__()
        width, outputs = target.hidden, target.rows if ids is None else len(ids)
        self.most: int | None = config.heads
        self._target = target
        self._ids = ids
        self._scale = config.logit_scale
        self.blocks = nn.ModuleList(_Block(width, config.layers, bias=bias) for _ in range(config.heads))
        self.lm_head = nn.Linear(width, outputs, bias=False) if config.shared_output else None
        own = 0 if config.shared_output else config.heads
        self.lm_heads = nn.ModuleList(nn.Linear(width, outputs, bias=False) for _ in range(own))

    def blank(self, count: int) -> Tensor:
        """Return zeros in place of states [count, hidden]."""
        return torch.zeros(count, self._target.hidden, dtype=self._target.dtype, device=self._target.device)

    def forward(self, states: Tensor) -> Tensor:
        """Return the state of each head [B, heads, hidden] for the target's last states [B, hidden]."""
        return torch.stack([block(states) for block in self.blocks], 1)

    def logits(self, left: Tensor, vocab_size: int) -> Tensor:
        """Logits over the target's valid ids, float32 [B, vocab_size]; -inf for an id that the heads cannot draft.

        Args:
            left: states of the heads that have not drafted, the first of which drafts now [B, n, hidden].
            vocab_size: number of valid ids.
        """
        output = self.lm_head or self.lm_heads[len(self.blocks) - left.shape[1]]
        own: Tensor = output(left[:, 0]).float() * self._scale
        if self._ids is None:
            return own[:, :vocab_size]
        whole = own.new_full((len(own), self._target.rows), -torch.inf)
        return whole.index_copy_(-1, self._ids, own)[:, :vocab_size]


class MedusaSlots:
    """The slots of Medusa's sequences, which take no memory; see `HeadKv` for the methods."""

    def __init__(self, head: MedusaHead) -> None:
        self._head = head
        self._ends: dict[str, int] = {}
        self.memory = KvMemory(0, 0, 0)

    def open(self, session: str, limit: int, tokens: Sequence[int], domain: str, known: int) -> bool:
        self._ends[session] = known
        return True

    def close(self, session: str) -> None:
        del self._ends[session]

    def end(self, session: str) -> int:
        return self._ends[session]

    def truncate(self, session: str, position: int) -> None:
        self._ends[session] = min(self._ends[session], position)

    def seal(self, session: str) -> None:
        """Do nothing: slots are not shared."""

    def reserve(self, session: str, position: int) -> bool:
        return True

    def restart(self, session: str, position: int) -> bool:
        self._ends[session] = position
        return True

    @torch.inference_mode()
    def run(
        self, sessions: Sequence[str], states: Tensor, tokens: Sequence[Sequence[int]], *, tapped: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Append slots to sequences.

        Args:
            sessions: the sequences [B].
            states: tapped states of all new slots [T, hidden], or what the last run returned [B, n, hidden].
            tokens: tokens of the new slots of each sequence [B], T in total.
            tapped: whether the states are tapped.

        Returns:
            The states of the heads that have not drafted, for this draft and for the next one.
        """
        counts = [len(each) for each in tokens]
        for session, count in zip(sessions, counts, strict=True):
            self._ends[session] += count
        left = self._head(states[torch.tensor(counts).cumsum(0) - 1]) if tapped else states
        return left, left[:, 1:]


def load_medusa(folder: Path, config: MedusaConfig, target: HeadTarget, *, allow_pickle: bool = False) -> MedusaHead:
    """Load the heads for a target, in the target's dtype and on its device.

    Raises:
        ModelRefused: the folder has no heads that can be served, or they were made for another target.
    """
    for what, own, needed in (("states", config.hidden, target.hidden), ("ids", config.rows, target.rows)):
        if own is not None and own != needed:
            raise ModelRefused(f"{folder}: the head is for {own} elements of {what}, this target has {needed}")
    found = read_weights(folder, _FILES, allow_pickle=allow_pickle)
    weights = {_renamed(name): weight for name, weight in found.items()}
    ids = _draft_ids(folder, config, weights.pop(_IDS, None), target.rows)
    if config.shared_output:
        first = weights.pop(_FIRST, None)
        shared = weights.setdefault(_SHARED, target.output() if first is None else first)
        if ids is not None and len(shared) == target.rows:
            weights[_SHARED] = shared[ids]
    bias = "blocks.0.layers.0.bias" in weights
    with target.device:
        places = None if ids is None else ids.to(target.device)
        head = MedusaHead(config, target, places, bias=bias).to(target.dtype).eval()
    fill(folder, head, weights)
    return head.requires_grad_(requires_grad=False)


def _renamed(name: str) -> str:
    """Return the name of a weight in vLLM's layout, from either layout."""
    name = name.removeprefix("medusa_heads.").removeprefix("medusa_head.")
    match name.split("."):
        case [head, layer, "linear", kind] if head.isdecimal():
            return f"blocks.{head}.layers.{layer}.{kind}"
        case [head, layer, "weight"] if head.isdecimal() and layer.isdecimal():
            return f"lm_heads.{head}.weight"
    return name


def _draft_ids(folder: Path, config: MedusaConfig, ids: Tensor | None, rows: int) -> Tensor | None:
    count = config.draft_ids
    if count is None or count == rows:
        return None
    if ids is None:
        raise ModelRefused(f"{folder}: {_IDS} is missing, which maps the {count} draft ids to the target's")
    distinct = set(ids.tolist())
    if not len(ids) == count == len(distinct) or not 0 <= min(distinct) <= max(distinct) < rows:
        raise ModelRefused(f"{folder}: {_IDS} does not map {count} draft ids to different ids of the target")
    return ids.long()

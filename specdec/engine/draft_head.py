"""A drafter's head restricted to its most frequent ids (FR-Spec, arXiv 2502.14856): the full head dominates its cost.

A model folder has a draft head if its config.json names the file of the ids, as in `"draft_head": "draft_head.ids"`.
Draft tokens and the q that is sent use only those ids, so every acceptance rule stays exact.
"""

from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import linear

from specdec.engine.cpu.product import PackedLinear
from specdec.engine.decoder import Decoder
from specdec.errors import ModelRefused

FIELD = "draft_head"
"""Key in config.json."""
_FILE = "draft_head.ids"
"""File in the safetensors format, with another suffix: other engines read every .safetensors file as weights."""
_IDS = "ids"


class DraftHead(nn.Module):
    """A head over some ids only; the logits of other ids are the smallest number of the dtype."""

    def __init__(self, whole: nn.Linear | PackedLinear, ids: Tensor) -> None:
        """`whole` is the head over all ids; `ids` are int64."""
        super().__init__()
        self._vocabulary = whole.out_features
        weight = whole.weight.detach()
        self._ids = nn.Buffer(ids.to(weight.device))
        weight = weight[self._ids]
        bias = None if whole.bias is None else whole.bias.detach()[self._ids]
        packed = isinstance(whole, PackedLinear)
        self._rows = PackedLinear(weight, bias) if packed else partial(linear, weight=weight, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of states [..., hidden]; all are finite, so that a masked row is still a distribution."""
        logits: Tensor = self._rows(hidden)
        smallest = torch.finfo(logits.dtype).min
        return logits.new_full((*logits.shape[:-1], self._vocabulary), smallest).index_copy_(-1, self._ids, logits)


def restrict_head(path: Path, decoder: Decoder) -> None:
    """Replace the head of a loaded decoder by the draft head that the folder's configuration names, if any.

    Raises:
        ModelRefused: the file is missing or broken, or has ids outside the model's vocabulary.
    """
    name = getattr(decoder.config, FIELD, None)
    if name is None:
        return
    try:
        ids = load_file(path / Path(str(name)).name)[_IDS].long()
    except (OSError, KeyError, SafetensorError) as error:
        raise ModelRefused(f"{path}: {FIELD} {name} in config.json cannot be read: {error}") from error
    rows = decoder.head.out_features
    if ids.dim() != 1 or not len(ids) or bool((ids.diff() <= 0).any()) or not 0 <= ids[0] <= ids[-1] < rows:
        raise ModelRefused(f"{path}: {name} must have ids in ascending order, from 0 to {rows - 1}")
    decoder.head = DraftHead(decoder.head, ids)


def save_head(folder: Path, ids: Tensor) -> str:
    """Write the ids into a model's folder. Return the value for `FIELD` in its config.json."""
    save_file({_IDS: ids.int()}, folder / _FILE)
    return _FILE

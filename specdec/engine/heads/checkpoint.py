"""The weights of an EAGLE-3 head, from a `speculators` or EAGLE-3/3.1 folder."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import embedding

from specdec.engine.heads.config import HeadConfig, MedusaConfig, read_config
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.errors import ModelRefused

_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"
_IDS, _KNOWN, _EMBEDDING, _OUTPUT = "d2t", "t2d", "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class HeadTarget:
    """The parts of a target that its head shares or must fit."""

    rows: int
    """Number of rows of the embedding."""
    hidden: int
    """Elements of a hidden state."""
    layers: int
    dtype: torch.dtype
    device: torch.device
    embed: Callable[[Tensor], Tensor]
    """Embeds ids, [...] -> [..., hidden]."""
    output: Callable[[], Tensor]
    """Returns the weights of the output layer [rows, hidden]."""


def load_head(folder: Path, target: HeadTarget, *, allow_pickle: bool = False) -> Eagle3Head:
    """Load a head for a target, in the target's dtype and on its device.

    With `allow_pickle`, pickles are loaded, which can run code of their author, if there are no safetensors.

    Raises:
        ModelRefused: the folder has no head that can be served, or it was made for another target; the message says
            which and why.
    """
    config = read_config(folder)
    if isinstance(config, MedusaConfig):
        raise ModelRefused(f"{folder}: Medusa heads draft only inside a native verifier")
    taps = config.tapped(target.layers)
    _check_target(folder, config, taps, target)
    weights = {
        _renamed(name): weight
        for name, weight in read_weights(folder, (_SAFETENSORS, _PICKLE), allow_pickle=allow_pickle).items()
    }
    ids = _draft_ids(folder, config, weights, target.rows)
    embed = _embed(folder, config, weights.pop(_EMBEDDING, None), target)
    if ids is None:
        weights.setdefault(_OUTPUT, target.output())
    with target.device:
        head = Eagle3Head(config, taps, embed, None if ids is None else ids.to(target.device)).to(target.dtype).eval()
    fill(folder, head, weights)
    return head.requires_grad_(requires_grad=False)


def features_name(folder: Path, dtype: str) -> str:
    """Return the name of a head's features: their data type, and the SHA-256 of the head's files.

    Raises:
        ModelRefused: the folder has no weights.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    weights = next((file for name in (_SAFETENSORS, _PICKLE) if (file := folder / name).is_file()), None)
    if weights is None:
        raise ModelRefused(f"{folder}: no weights ({_SAFETENSORS})")
    with weights.open("rb") as stream:
        digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"{dtype} {digest.hexdigest()}"


def _check_target(folder: Path, config: HeadConfig, taps: tuple[int, ...], target: HeadTarget) -> None:
    """Refuse a head that was made for another target."""
    if config.target_hidden_size != target.hidden:
        raise ModelRefused(
            f"{folder}: the head reads states of {config.target_hidden_size} elements, this target has {target.hidden}"
        )
    if config.layer.vocab_size != target.rows:
        raise ModelRefused(
            f"{folder}: the head is for a vocabulary of {config.layer.vocab_size} ids, this target has {target.rows}"
        )
    if missing := [each for each in taps if not 0 <= each < target.layers]:
        raise ModelRefused(f"{folder}: the head reads layer {missing[0]}, this target has {target.layers} layers")


def _embed(folder: Path, config: HeadConfig, own: Tensor | None, target: HeadTarget) -> Callable[[Tensor], Tensor]:
    """Return the embedding of the head: its own, or that of the target."""
    if own is not None:
        if own.shape != (target.rows, config.layer.hidden_size):
            raise ModelRefused(
                f"{folder}: {_EMBEDDING} is {tuple(own.shape)}, not {(target.rows, config.layer.hidden_size)}"
            )
        return partial(embedding, weight=own.to(target.device, target.dtype))
    if config.layer.hidden_size != target.hidden:
        raise ModelRefused(
            f"{folder}: hidden_size is {config.layer.hidden_size}, so the head needs {_EMBEDDING}: this target embeds "
            f"in {target.hidden} elements"
        )
    return target.embed


def read_weights(folder: Path, files: Sequence[str], *, allow_pickle: bool) -> dict[str, Tensor]:
    """Return the weights of the first of the files that the folder has; those with another suffix are pickles.

    Raises:
        ModelRefused: there is none, it cannot be read, or it is a pickle without `allow_pickle`.
    """
    file = next((folder / name for name in files if (folder / name).is_file()), None)
    if file is None:
        raise ModelRefused(f"{folder}: no weights ({files[0]})")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        if not allow_pickle:
            raise ModelRefused(
                f"{folder}: the weights are pickles ({file.name}), which may run code when loaded: convert them "
                f"to safetensors, or set model.allow_pickle if you trust their maker"
            )
        found: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        return found
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelRefused(f"{folder}: the weights cannot be read: {error}") from error


def _renamed(name: str) -> str:
    """Return the name of a weight in this package's head, from either layout."""
    name = name.removeprefix("model.")
    for layer in ("layers.0.", "midlayer."):
        if name.startswith(layer):
            return name.removeprefix(layer).replace("self_attn.", "").replace("mlp.", "")
    return name


def _draft_ids(folder: Path, config: HeadConfig, weights: dict[str, Tensor], rows: int) -> Tensor | None:
    """Remove the id tables from the weights. Return the target's id of each draft id, or None if they are equal."""
    differences, known = weights.pop(_IDS, None), weights.pop(_KNOWN, None)
    count = config.draft_vocab_size
    if count is None or count == rows:
        return None
    if differences is None:
        raise ModelRefused(f"{folder}: d2t is missing, which maps the {count} draft ids to the target's")
    ids = torch.arange(len(differences)) + differences.long()  # d2t holds differences
    distinct = set(ids.tolist())
    sound = len(ids) == count == len(distinct) and 0 <= min(distinct) <= max(distinct) < rows
    if sound and known is not None:
        marked = known.bool().nonzero()[:, 0]
        sound = len(known) == rows and torch.equal(marked, ids.sort().values)
    if not sound:
        raise ModelRefused(f"{folder}: d2t and t2d do not map {count} draft ids to different ids of the target")
    return ids


def fill(folder: Path, head: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a head its weights, all of which must be there with their shapes.

    Raises:
        ModelRefused: a weight is missing, unknown, or of another shape; the message names it.
    """
    shapes = {name: tuple(weight.shape) for name, weight in head.state_dict().items()}
    if missing := sorted(shapes.keys() - weights.keys()):
        raise ModelRefused(f"{folder}: the weights lack {len(missing)} tensors of the head, the first is {missing[0]}")
    if unknown := sorted(weights.keys() - shapes.keys()):
        raise ModelRefused(f"{folder}: the weights have a tensor {unknown[0]}, which this head does not use")
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise ModelRefused(f"{folder}: {name} is {tuple(weights[name].shape)}, the options ask for {shape}")
    head.load_state_dict(dict(weights))

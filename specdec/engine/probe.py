"""One trial token through a model: does its attention come to us, and what shape has its KV?"""

from typing import Any

from torch import Tensor

from specdec.engine.attention import Rule, attending
from specdec.engine.decoder import Decoder
from specdec.engine.kv_layout import KvLayout
from specdec.errors import ModelRefused

_SERVED = {"full_attention", "sliding_attention"}


class Recorder:
    """An attention step that only notes what each layer asks for."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.windows: list[int | None] = []
        self.shapes: list[tuple[int, int, int]] = []
        self.dtypes: list[Any] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Note the call; the answer is zeros of the right shape."""
        self.layers.append(layer)
        self.windows.append(rule.window)
        self.shapes.append((key.shape[1], key.shape[3], value.shape[3]))
        self.dtypes.append(key.dtype)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def probe(decoder: Decoder) -> KvLayout:
    """The layout of the model's keys and values.

    Raises:
        ModelRefused: some layer does not attend through transformers' attention interface, or not as this engine can.
    """
    config = decoder.config
    _refuse_layers(config)
    seen = Recorder()
    with attending(seen):
        decoder.logits([0], [0], [0])
    count = config.num_hidden_layers
    if sorted(seen.layers) != list(range(count)):
        raise ModelRefused(
            f"{config.model_type}: {len(seen.layers)} of {count} layers attend through transformers' attention "
            f"interface; every layer must, once"
        )
    if set(zip(seen.layers, seen.windows, strict=True)) != set(enumerate(_windows(config))):
        raise ModelRefused(f"{config.model_type}: the layers do not all pass on their sliding window")
    if len(set(seen.shapes)) != 1:
        raise ModelRefused(
            f"{config.model_type}: the layers' keys and values differ in shape: {sorted(set(seen.shapes))}"
        )
    heads, key_width, value_width = seen.shapes[0]
    return KvLayout(count, heads, key_width, value_width, seen.dtypes[0], decoder.device)


def _refuse_layers(config: Any) -> None:
    """Refuse layers whose state cannot be rolled back by length, or whose mask this engine does not draw."""
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _SERVED)
    if other:
        raise ModelRefused(f"{config.model_type}: layers of kind {', '.join(other)} are not served")


def _windows(config: Any) -> list[int | None]:
    """The sliding window that each layer must ask for, by the configuration."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]

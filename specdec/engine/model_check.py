"""Check of a model at load time: its attention runs through this engine, and packed passes equal plain passes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.engine.attention import AttentionRule, attending
from specdec.engine.batch import Chunk
from specdec.engine.decoder import Decoder
from specdec.engine.kv.backend import OpenKvBackend, forward
from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.pool import KvPool
from specdec.errors import ModelRefused

LONG, MIDDLE, SHORT = "long", "middle", "short"
LENGTHS = {LONG: 11, MIDDLE: 9, SHORT: 2}
"""Number of tokens of each session of the check; the first pass needs more than one tile of `host_product.cpp`."""
LIMIT = max(LENGTHS.values())

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Allowed ‖difference‖ / ‖logits‖ by the model's dtype: above rounding errors, below the error of a wrong mask."""

_SERVED_LAYERS = {"full_attention", "sliding_attention"}


def check_model(path: Path, decoder: Decoder, kv_backend: OpenKvBackend[Any], prepare: Callable[[], None]) -> KvLayout:
    """Check by trial passes that the engine computes the model's logits. Return the layout of its keys and values.

    Args:
        path: the model's folder, for messages.
        decoder: the model as loaded by transformers.
        kv_backend: opens the memory for keys and values.
        prepare: prepares the decoder for passes, after the logits of transformers are computed.

    Raises:
        ModelRefused: the logits differ from those of transformers, or a trial pass fails; the message says where and
            why.
    """
    try:
        texts = {name: _text(length, decoder.vocab_size) for name, length in LENGTHS.items()}
        plain = {name: decoder.plain_logits(tokens) for name, tokens in texts.items()}
        prepare()
        layout = read_kv_layout(decoder)
        packed = _packed_logits(decoder, layout, kv_backend, texts)
        check_packed_logits(decoder, layout, packed, plain)
    except ModelRefused as refusal:
        raise ModelRefused(f"{path}: {refusal.message}") from None
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ModelRefused(f"{path}: a trial pass fails: {error}") from error
    return layout


class RecordingStep:
    """An attention step that records the arguments of each layer."""

    def __init__(self) -> None:
        self.windows: list[tuple[int, int | None]] = []
        """Index and sliding window of each layer."""
        self.layouts: list[tuple[int, int, int, torch.dtype]] = []
        """Heads, key width, value width and dtype of each layer."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: AttentionRule) -> Tensor:
        """Record the call and return zeros, with shapes as in `AttentionStep.attend`."""
        self.windows.append((layer, rule.window))
        self.layouts.append((key.shape[1], key.shape[3], value.shape[3], key.dtype))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def read_kv_layout(decoder: Decoder) -> KvLayout:
    """The layout of the model's keys and values, read from a pass of one token.

    Raises:
        ModelRefused: a layer does not use transformers' attention interface, or uses it in an unsupported way.
    """
    config = decoder.config
    _refuse_layers(config)
    seen = RecordingStep()
    with attending(seen):
        decoder.logits([0], [0], [0])
    count = config.num_hidden_layers
    if sorted(layer for layer, _ in seen.windows) != list(range(count)):
        raise ModelRefused(
            f"{config.model_type}: {len(seen.windows)} of {count} layers attend through transformers' attention "
            f"interface; every layer must, once"
        )
    if set(seen.windows) != set(enumerate(_windows(config))):
        raise ModelRefused(f"{config.model_type}: the layers do not all pass on their sliding window")
    shapes = {layout[:3] for layout in seen.layouts}
    if len(shapes) != 1:
        raise ModelRefused(f"{config.model_type}: the layers' keys and values differ in shape: {sorted(shapes)}")
    return KvLayout(count, *seen.layouts[0], decoder.device)


def check_packed_logits(
    decoder: Decoder, layout: KvLayout, packed: Mapping[str, Tensor], plain: Mapping[str, Tensor]
) -> None:
    """Compare the packed logits of some sessions with those of transformers.

    Raises:
        ModelRefused: the logits differ, so the model mixes tokens in a way that this engine does not compute.
    """
    for name, expected in plain.items():
        error = float((packed[name] - expected).norm() / expected.norm().clamp_min(1e-9))
        if not error <= TOLERANCE[layout.dtype]:
            raise ModelRefused(
                f"{decoder.config.model_type}: packed passes differ from plain ones by {error:.1e} of the logits, "
                f"allowed is {TOLERANCE[layout.dtype]:.0e}"
            )


def _refuse_layers(config: Any) -> None:
    """Refuse layers whose state cannot be rolled back by length, or whose mask this engine does not support."""
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _SERVED_LAYERS)
    if other:
        raise ModelRefused(f"{config.model_type}: layers of kind {', '.join(other)} are not served")


def _windows(config: Any) -> list[int | None]:
    """The sliding window that each layer must pass on, according to the configuration."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _text(length: int, vocab_size: int) -> list[int]:
    """Ids without a simple pattern, so that errors do not cancel out."""
    return [(length + 7919 * index * index) % vocab_size for index in range(length)]


def _packed_logits(
    decoder: Decoder, layout: KvLayout, kv_backend: OpenKvBackend[Any], texts: dict[str, list[int]]
) -> dict[str, Tensor]:
    """Logits of every token of every text, from three ragged passes with a draft rolled back after the second."""
    page = kv_backend(decoder, layout, 0).store
    opened = kv_backend(decoder, layout, len(LENGTHS) * page.pages(LIMIT) * page.page_bytes)
    pool = KvPool(opened.store)
    for name in LENGTHS:
        pool.admit(name, LIMIT)

    def logits(*chunks: Chunk) -> Tensor:
        return forward(opened.run, pool, chunks, decoder.vocab_size)[0]

    long, middle, short = texts[LONG], texts[MIDDLE], texts[SHORT]
    rejected = long[:3]
    first = logits(Chunk(LONG, long[:6], 6), Chunk(MIDDLE, middle[:8], 8), Chunk(SHORT, short[:1], 1))
    second = logits(Chunk(SHORT, short[1:], 1), Chunk(LONG, long[6:7] + rejected, 4))
    pool.truncate(LONG, 7)
    third = logits(Chunk(LONG, long[7:], 4), Chunk(MIDDLE, middle[8:], 1))
    return {
        LONG: torch.cat([first[:6], second[1:2], third[:4]]),
        MIDDLE: torch.cat([first[6:14], third[4:]]),
        SHORT: torch.cat([first[14:], second[:1]]),
    }

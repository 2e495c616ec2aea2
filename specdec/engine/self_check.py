"""The proof at load time: packed, chunked and rolled-back passes give what plain transformers gives."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.decoder import Decoder
from specdec.engine.forward import forward
from specdec.engine.kv_backend import Open, Run
from specdec.engine.kv_layout import KvLayout
from specdec.engine.kv_pool import KvPool
from specdec.engine.probe import probe
from specdec.errors import ModelRefused

LONG, MIDDLE, SHORT = "long", "middle", "short"
LENGTHS = {LONG: 11, MIDDLE: 5, SHORT: 2}
LIMIT = 11
"""Most tokens that a session of the check has."""

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Allowed ‖difference‖ / ‖logits‖, by the dtype of the model: rounding passes, a wrong mask does not."""


def prove(path: Path, decoder: Decoder, place: Open[Any]) -> KvLayout:
    """The layout of the model's KV, once trial passes have shown that the engine computes what transformers does.

    Raises:
        ModelRefused: it does not, or a trial pass fails; the message says which folder and why.
    """
    try:
        layout = probe(decoder)
        self_check(decoder, layout, place)
    except ModelRefused as refusal:
        raise ModelRefused(f"{path}: {refusal.message}") from None
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ModelRefused(f"{path}: a trial pass fails: {error}") from error
    return layout


def self_check(decoder: Decoder, layout: KvLayout, place: Open[Any]) -> None:
    """Compare packed logits with the reference on three sessions at once.

    Raises:
        ModelRefused: they differ, so the model does something between tokens that the engine does not know of.
    """
    texts = {name: _text(length, decoder.vocab_size) for name, length in LENGTHS.items()}
    packed = _packed(decoder, layout, place, texts)
    for name, tokens in texts.items():
        plain = decoder.plain_logits(tokens)
        error = float((packed[name] - plain).norm() / plain.norm().clamp_min(1e-9))
        if not error <= TOLERANCE[layout.dtype]:
            raise ModelRefused(
                f"{decoder.config.model_type}: packed passes differ from plain ones by {error:.1e} of the logits, "
                f"allowed is {TOLERANCE[layout.dtype]:.0e}"
            )


def _text(length: int, vocab_size: int) -> list[int]:
    """Ids without a pattern that a model could be blind to."""
    return [(length + 7919 * index * index) % vocab_size for index in range(length)]


def _packed(decoder: Decoder, layout: KvLayout, place: Open[Any], texts: dict[str, list[int]]) -> dict[str, Tensor]:
    """Logits of every token of every text: three ragged passes, with a rejected draft rolled back in the second."""
    pool, run = _pool(decoder, layout, place)

    def passed(*chunks: Chunk) -> Tensor:
        return forward(run, pool, chunks, decoder.vocab_size)

    long, middle, short = texts[LONG], texts[MIDDLE], texts[SHORT]
    rejected = long[:3]
    first = passed(Chunk(LONG, long[:6], 6), Chunk(MIDDLE, middle[:4], 4), Chunk(SHORT, short[:1], 1))
    second = passed(Chunk(SHORT, short[1:], 1), Chunk(LONG, long[6:7] + rejected, 4))
    pool.truncate(LONG, 7)
    third = passed(Chunk(LONG, long[7:], 4), Chunk(MIDDLE, middle[4:], 1))
    return {
        LONG: torch.cat([first[:6], second[1:2], third[:4]]),
        MIDDLE: torch.cat([first[6:10], third[4:]]),
        SHORT: torch.cat([first[10:], second[:1]]),
    }


def _pool(decoder: Decoder, layout: KvLayout, place: Open[Any]) -> tuple[KvPool[Any], Run[Any]]:
    """Room for the texts, each admitted, and how passes run over it."""
    page = place(decoder, layout, 0).store
    opened = place(decoder, layout, len(LENGTHS) * page.pages(LIMIT) * page.page_bytes)
    pool = KvPool(opened.store)
    for name in LENGTHS:
        pool.admit(name, LIMIT)
    return pool, opened.run

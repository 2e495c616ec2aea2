"""Guessed API keys: near misses get the same refusal as any other key, after the same time."""

import time
from pathlib import Path
from statistics import median

import pytest
from prometheus_client import CollectorRegistry

from gateway.callers.key_file import KeyFile
from gateway.config import KeyLimitSettings
from gateway.metrics import KeyMetrics
from specdec.errors import KeyRefused
from tests.integration.gateway.key_files import line, write

KEY = "sk-" + "k3y" * 16
PAIRS = 4000


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    others = [line(f"{KEY}-{index}", "other") for index in range(1000)]
    path = write(tmp_path, *others, line(KEY, "acme"))
    return KeyFile(path, KeyLimitSettings(), KeyMetrics(CollectorRegistry()))


def refusal(keys: KeyFile, guess: str) -> str:
    with pytest.raises(KeyRefused) as refused:
        keys.key_of([f"Bearer {guess}"])
    return refused.value.message


def seconds(keys: KeyFile, guess: str) -> float:
    began = time.perf_counter()
    try:
        keys.key_of([f"Bearer {guess}"])
    except KeyRefused:
        return time.perf_counter() - began
    raise AssertionError("a guess was accepted")


def test_near_misses_are_refused_in_the_same_words(keys: KeyFile) -> None:
    near = [KEY[:-1], KEY + "k", KEY.upper(), KEY[:-1] + "z", "x" + KEY[1:], KEY[::-1], "0" * 64]
    assert {refusal(keys, guess) for guess in near} == {"the API key is not known"}
    assert keys.key_of([f"Bearer {KEY}"]).tenant == "acme"


def test_the_time_of_a_refusal_does_not_say_how_much_was_right(keys: KeyFile) -> None:
    close, far = KEY[:-1] + "z", "z" * len(KEY)
    pairs = [(seconds(keys, close), seconds(keys, far)) for _ in range(PAIRS)]
    ratio = median(close for close, _ in pairs) / median(far for _, far in pairs)
    assert 0.9 < ratio < 1.1, "medians of calls in turn; a comparison that stops early is of another order"

"""generation_config.json supplies values that a request does not set, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.models.served import SamplingDefaults
from gateway.request import GenerationRequest, TextPrompt, named_options, sampling_params
from specdec.errors import ConfigError


def folder(path: Path, content: Any) -> Path:
    (path / "generation_config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def request(max_tokens: int | None = None, cap: int | None = None, **given: Any) -> GenerationRequest:
    return GenerationRequest(
        prompt=TextPrompt("x"),
        sampling=sampling_params(given),
        named=named_options(given, max_tokens),
        max_tokens=None if max_tokens == -1 else max_tokens,
        cap_tokens=cap,
    )


ALL = {
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "max_new_tokens": 40,
    "eos_token_id": 2,
    "typical_p": None,
}


def test_a_request_that_names_nothing_follows_the_folder(tmp_path: Path) -> None:
    got = SamplingDefaults.of_folder(folder(tmp_path, ALL)).applied(request(seed=1))
    sampling = got.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.6, 0.9, 20, 0.1)
    assert (sampling.repetition_penalty, sampling.seed, got.max_tokens, got.cap_tokens) == (1.1, 1, None, 40)


def test_what_a_request_names_wins_field_by_field(tmp_path: Path) -> None:
    defaults = SamplingDefaults.of_folder(folder(tmp_path, ALL))
    got = defaults.applied(request(max_tokens=500, temperature=1.0, top_k=0, seed=1))
    assert (got.sampling.temperature, got.sampling.top_k, got.sampling.top_p) == (1.0, 0, 0.9)
    assert (got.max_tokens, got.cap_tokens) == (500, None)
    assert defaults.applied(request(max_tokens=-1)).cap_tokens is None
    assert defaults.applied(request(cap=16)).cap_tokens == 16
    assert defaults.applied(request(min_tokens=60)).cap_tokens == 60


def test_a_top_p_of_nothing_stays_greedy(tmp_path: Path) -> None:
    got = SamplingDefaults.of_folder(folder(tmp_path, ALL)).applied(request(top_p=0))
    assert (got.sampling.temperature, got.sampling.top_p) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("content", "sampling"),
    [
        ({}, {}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"do_sample": None, "temperature": None}, {}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 50, "temperature": 1}, {"temperature": 1.0, "top_k": 50}),
    ],
)
def test_what_a_file_says(tmp_path: Path, content: dict[str, Any], sampling: dict[str, Any]) -> None:
    assert SamplingDefaults.of_folder(folder(tmp_path, content)) == SamplingDefaults(sampling)


def test_a_folder_without_the_file_says_nothing(tmp_path: Path) -> None:
    given = request(seed=1)
    assert SamplingDefaults.of_folder(tmp_path).applied(given) == given


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "generation_config.json"),
        ("[]", "not a JSON object"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"top_k": 1.5}, "top_k must be a whole number"),
        ({"top_p": True}, "top_p must be a number"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
    ],
)
def test_a_value_that_cannot_be_is_named_at_the_start(tmp_path: Path, content: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SamplingDefaults.of_folder(folder(tmp_path, content))

"""Sampling defaults of a model, from the generation_config.json of its folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from gateway.request import GenerationRequest
from specdec.errors import ConfigError, FieldInvalid
from specdec.sampling.params import SamplingParams

_FILE = "generation_config.json"
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_LENGTH = "max_new_tokens"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Default sampling parameters and output length, for requests that do not set them."""

    sampling: Mapping[str, float | int] = field(default_factory=dict)
    """Default values by field name of SamplingParams."""
    max_tokens: int | None = None
    """Longest output, in tokens, of a request without any limit of its own."""

    @classmethod
    def of_folder(cls, path: Path) -> Self:
        """Return the defaults of a model folder; empty if it has no such file.

        Raises:
            ConfigError: the file cannot be read, or one of its values is out of range.
        """
        try:
            return cls._of(_read(path / _FILE))
        except (FieldInvalid, OSError, ValueError) as error:
            raise ConfigError(f"{path}: {_FILE}: {error}; or set generation_config to none") from error

    @classmethod
    def _of(cls, given: Mapping[str, Any]) -> Self:
        sampling: dict[str, Any] = {name: _number(name, given) for name in _NUMBERS if name in given}
        if "top_k" in given:
            sampling["top_k"] = max(_whole("top_k", given), 0)  # -1 is no limit, as 0
        if given.get("do_sample") is False:
            sampling["temperature"] = 0.0
        SamplingParams(seed=0, **sampling)
        length = _whole(_LENGTH, given) if _LENGTH in given else None
        if length is not None and length < 1:
            raise FieldInvalid(f"{_LENGTH} must be at least 1, got {length}", _LENGTH)
        return cls(sampling, length)

    def applied(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with defaults for the options that it does not set."""
        left: dict[str, Any] = {name: value for name, value in self.sampling.items() if name not in request.named}
        sampling = replace(request.sampling, **left) if left else request.sampling
        if self.max_tokens is None or "max_tokens" in request.named or request.cap_tokens is not None:
            return replace(request, sampling=sampling) if left else request
        return replace(request, sampling=sampling, cap_tokens=max(self.max_tokens, sampling.min_tokens))


def _read(file: Path) -> dict[str, Any]:
    """Return the non-null values of a file; empty if the file does not exist."""
    if not file.is_file():
        return {}
    given = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(given, dict):
        raise ValueError("it is not a JSON object")
    return {name: value for name, value in given.items() if value is not None}


def _number(name: str, given: Mapping[str, Any]) -> float:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldInvalid(f"{name} must be a number, got {value!r}", name)
    return float(value)


def _whole(name: str, given: Mapping[str, Any]) -> int:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldInvalid(f"{name} must be a whole number, got {value!r}", name)
    return value

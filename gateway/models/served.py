"""Models that a gateway serves, by name, each with its own tokenizer and verifiers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from gateway.request import GenerationRequest
from gateway.text.prompt_encoder import PromptEncoder
from gateway.text.tokenizer import ModelTokenizer
from gateway.verifiers.balancer import VerifierPool
from specdec.errors import ConfigError, FieldInvalid, ModelNotFound
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import VerifierInfo

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


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Model with the parts that serve its requests."""

    name: str
    """Name that callers use."""
    tokenizer: ModelTokenizer
    prompts: PromptEncoder
    pool: VerifierPool
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    """Defaults for requests that do not set sampling options."""
    parent: str = ""
    """Name of the model that this is an adapter of; empty for a model."""
    fingerprint: str = ""
    """Fingerprint of the model with the adapter; empty for a model."""

    @property
    def info(self) -> VerifierInfo:
        """Model and limits, from any ready verifier; raises NoVerifier."""
        return self.pool.info_under(self.fingerprint)

    def adapted(self) -> Iterator[Self]:
        """Yield the adapters of the model, as models that share its tokenizer and verifiers."""
        for name, fingerprint in self.pool.adapters.items():
            yield replace(self, name=name, parent=self.name, fingerprint=fingerprint)


class ServedModels:
    """All served models, by name. The first is the default for requests without a model name.

    A session belongs to one model or adapter permanently. The session store keeps one string for it: the fingerprint
    for the first model, as gateways with a single model write it; the fingerprint, a space and the name for any other.
    """

    def __init__(self, *models: ServedModel) -> None:
        """Raises ValueError if there is no model."""
        self._models = {model.name: model for model in models}
        if not models:
            raise ValueError("a gateway serves one model at least")
        self.first = models[0]

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def listed(self) -> dict[str, ServedModel]:
        """All models, then the adapters that their verifiers list, by name. A model hides an adapter of its name."""
        adapters = {each.name: each for model in self for each in model.adapted()}
        return self._models | adapters | self._models

    def named(self, name: str) -> ServedModel:
        """Return the named model or adapter, or the first model for an empty name; raises ModelNotFound."""
        model = (self._models.get(name) or self.listed.get(name)) if name else self.first
        if model is None:
            raise ModelNotFound(f"model {name!r} is not served here; {self._names()}", "model")
        return model

    def of_turn(self, name: str) -> ServedModel:
        """Return the model with which a turn began; raises ModelNotFound.

        A single model is returned for any name, because it may have been renamed since. The call and the fingerprint of
        a turn determine its adapter.
        """
        return self.first if len(self._models) == 1 else self.named(name)

    def of_session(self, kept: str, asked: str) -> tuple[ServedModel, str]:
        """Return the model of a request, and the fingerprint with which its session began.

        Args:
            kept: the session's model as stored in the session store; empty for a new session.
            asked: model name in the request; empty if it has none.

        Raises:
            ModelNotFound: the model is not served here.
            FieldInvalid: the session belongs to another model than the requested one.
        """
        if not kept:
            return (model := self.named(asked)), model.fingerprint
        fingerprint, _, name = kept.partition(" ")
        model = self.named(name)
        if asked and self.named(asked).name != model.name:
            raise FieldInvalid(f"the session belongs to model {model.name!r}", "model")
        return model, fingerprint

    def kept(self, model: ServedModel, fingerprint: str) -> str:
        """Return the string that the session store keeps for a session's model."""
        return fingerprint if model is self.first else f"{fingerprint} {model.name}"

    def name_of(self, kept: str) -> str:
        """Return the name of a session's model, even if it is no longer served."""
        return kept.partition(" ")[2] or self.first.name

    @property
    def states(self) -> dict[str, str]:
        """States of all models' verifiers, by address."""
        return {address: state for model in self for address, state in model.pool.states.items()}

    @property
    def ready(self) -> list[ServedModel]:
        """Models and adapters with a ready verifier."""
        return [model for model in self.listed.values() if model.pool.serves(model.fingerprint)]

    async def wait_known(self) -> None:
        """Wait until the first verifiers of every model have been probed."""
        for model in self:
            await model.pool.known.wait()

    async def close(self) -> None:
        """Close the connections to all verifiers."""
        for model in self:
            await model.pool.close()

    def _names(self) -> str:
        *names, last = map(repr, self.listed)
        return f"{', '.join(names)} and {last} are" if names else f"{last} is"

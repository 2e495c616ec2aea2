"""Settings of a process. Flags override environment variables, which override a YAML file, which overrides defaults.

The settings of a process are one frozen value. All mistakes in them are reported in one line.
"""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

from specdec.errors import ConfigError
from specdec.serving.environment import check_environment


def _split_origins(value: Any) -> Any:
    """Return the origins of a comma-separated text, and other values unchanged."""
    return tuple(filter(None, (each.strip() for each in value.split(",")))) if isinstance(value, str) else value


def check_origins(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values if each is `*` or `scheme://host[:port]`; otherwise raise ValueError."""
    for value in values:
        if value != "*" and not re.fullmatch(r"https?://[^\s/,]+", value):
            raise ValueError(f"must be * or scheme://host:port without a path, got {value!r}")
    return values


Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_origins), AfterValidator(check_origins)]
"""Origins of web pages: a list or a comma-separated text."""


HostNames = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_origins)]
"""Host names: a list or a comma-separated text."""


SECRETS = Path("/run/secrets")
"""Folder of a container engine's secrets. A file named like a variable sets it, with the lowest precedence."""


class Section(BaseModel):
    """A group of related settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class LogSettings(Section):
    """Which events are logged, and in which format."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe events that are written."""
    form: Literal["json", "console"] = "json"
    """`json` writes one object on each line, `console` writes for people."""


class TokenizerSettings(Section):
    """The model as callers see it; only the tokenizer of its folder is read."""

    path: Path
    """A folder with a Hugging Face model; nothing is downloaded."""
    name: str = ""
    """The name that callers use; empty takes the name of the folder."""

    @property
    def served_name(self) -> str:
        return self.name or self.path.name


class ModelSettings(TokenizerSettings):
    """Model to load, and how to load it."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """float32 gives exact token identity with plain decoding."""
    device: str = "auto"
    """Device of the model; `auto` is cuda if there is a GPU, else cpu."""
    allow_pickle: bool = False
    """Load weights in a format that can execute code of their author, if a folder has no safetensors."""
    compile: bool = False
    """Compile the model while it is loaded: faster passes for a longer start. A CPU needs a C++ compiler for it."""
    attention: Literal["auto", "operator", "torch"] = "auto"
    """Attention on a CPU: `operator` is C++ for all sessions at once, built at the first start; `torch` computes one
    session after another; `auto` is the operator if there is a C++ compiler."""
    products: Literal["auto", "operator", "torch"] = "auto"
    """Products with float32 weights on a CPU: `operator` is C++ over packed weights, built at the first start; `torch`
    is PyTorch, or vLLM with that backend; `auto` is the operator if there is a C++ compiler."""

    @property
    def engine_options(self) -> dict[str, Any]:
        """Return the engine's arguments for loading the model."""
        return self.model_dump(exclude={"path", "name", "compile"}) | {"compiled": self.compile}


class Settings(BaseSettings):
    """Base class of every service's settings. A subclass sets `env_prefix`."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
        use_attribute_docstrings=True,
    )

    log: LogSettings = LogSettings()

    @classmethod
    def load(cls, config: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Self:
        """Read the settings.

        Args:
            overrides: settings from the command line, with nested mappings for sections.

        Raises:
            ConfigError: the file cannot be read, a setting is unknown or wrong, or a variable of the environment is
                unknown; the message is one line.
        """
        check_environment(os.environ, cls.model_config["env_prefix"], cls.model_fields)
        values = read_yaml(config) if config else {}

        def sources(
            settings: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            **_: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            secrets = (SecretsSettingsSource(settings, SECRETS),) if SECRETS.is_dir() else ()
            return init_settings, env_settings, InitSettingsSource(settings, values), *secrets

        body = {"__module__": cls.__module__, "settings_customise_sources": staticmethod(sources)}
        with_file = cast("type[Self]", type(cls.__name__, (cls,), body))
        try:
            return with_file(**(overrides or {}))
        except ValidationError as error:
            where = f"config file {config}: " if config else ""
            raise ConfigError(where + "; ".join(_explain(cls, each) for each in error.errors())) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        ConfigError: the file is missing or unreadable, is not YAML, or holds no mapping.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"config file {path} must hold a mapping, not a {type(values).__name__}")
    return values


def _explain(settings: type[BaseModel], detail: ErrorDetails) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    if detail["type"] != "extra_forbidden":
        return f"{name}: {detail['msg'].removeprefix('Value error, ')}"
    known = _fields_at(settings, detail["loc"][:-1])
    close = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
    return f"{name}: unknown setting" + (f", did you mean {close[0]!r}?" if close else "")


def _fields_at(settings: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        field = settings.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return []
        settings = field.annotation
    return list(settings.model_fields)

"""From the settings of `specdec up` to every process with its configuration: pure, nothing is started or written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specdec.cli import ports
from specdec.cli.settings import UpSettings, find_model
from specdec.errors import ConfigError

Role = Literal["drafter", "verifier", "gateway"]

MODULES: Mapping[Role, str] = {
    "drafter": "drafter_service",
    "verifier": "verifier_service",
    "gateway": "gateway",
}

_TELLTALE = {"model": "config.json", "ngram": "counts.safetensors"}
"""The file without which a folder is not what this kind of drafter needs."""
_DRAIN_SECONDS = 5.0
"""A person who pressed Ctrl-C does not wait for long streams to end."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where each process listens; entry i belongs to process i + 1 of its role."""

    gateway_http: list[str]
    gateway: list[str]
    drafter: list[str]
    verifier: list[str]
    drafter_http: list[str]
    verifier_http: list[str]


@dataclass(frozen=True, slots=True)
class Service:
    """One process of ours and what its configuration file says."""

    role: Role
    name: str
    """As in `drafter-1`."""
    http: str
    grpc: str
    config: dict[str, Any]


def check_models(settings: UpSettings) -> None:
    """Make sure that the model folders are there.

    Raises:
        ConfigError: one is not, or is no model folder.
    """
    _check("--target", settings.target, "config.json")
    if settings.drafters and settings.drafter_kind != "prompt_lookup":
        _check("--drafter", settings.drafter, _TELLTALE[settings.drafter_kind])


def _check(option: str, path: Path, telltale: str) -> None:
    if not find_model(path).is_dir():
        raise ConfigError(f"no model folder at {path}: give one with {option} PATH")
    if not (find_model(path) / telltale).is_file():
        raise ConfigError(f"{path} is not such a model's folder, it has no {telltale}: give one with {option} PATH")


def allot(settings: UpSettings) -> Addresses:
    """Find an address for everything.

    Raises:
        ConfigError: an address that was asked for is taken.
    """
    metrics = "127.0.0.1:0"
    return Addresses(
        *ports.allot(
            [
                ports.Wanted("--http", settings.http, settings.gateways),
                ports.Wanted("--grpc", settings.grpc, settings.gateways),
                ports.Wanted("--drafter-address", settings.drafter_address, settings.drafters),
                ports.Wanted("--verifier-address", settings.verifier_address, settings.verifiers),
                ports.Wanted("--drafter-address", metrics, settings.drafters),
                ports.Wanted("--verifier-address", metrics, settings.verifiers),
            ]
        )
    )


def services(settings: UpSettings, addresses: Addresses, redis_url: str) -> list[Service]:
    """Every process in the order it is started: whom another dials comes first."""
    return [
        *_drafters(settings, addresses),
        *_verifiers(settings, addresses),
        *_gateways(settings, addresses, redis_url),
    ]


def later_drafter(settings: UpSettings) -> Service:
    """The drafter that a system without any would use, were it started by hand."""
    return _drafter(settings, 1, "127.0.0.1:0", settings.drafter_address)


def _drafters(settings: UpSettings, addresses: Addresses) -> Iterator[Service]:
    for number, (grpc, http) in enumerate(zip(addresses.drafter, addresses.drafter_http, strict=True), 1):
        yield _drafter(settings, number, http, grpc)


def _drafter(settings: UpSettings, number: int, http: str, grpc: str) -> Service:
    kind = settings.drafter_kind
    folder = settings.target if kind == "prompt_lookup" else settings.drafter  # that one needs but the tokenizer
    model = {"path": _absolute(folder), "dtype": settings.dtype, "compile": settings.compile}
    return _service("drafter", number, http, grpc, {"kind": kind, "model": model, "log": _log(settings)})


def _verifiers(settings: UpSettings, addresses: Addresses) -> Iterator[Service]:
    model = {
        "path": _absolute(settings.target),
        "name": settings.served_name,
        "dtype": settings.dtype,
        "compile": settings.compile,
    }
    chosen = {"gamma": settings.gamma}
    drafters = addresses.drafter or [settings.drafter_address]  # with none, one may join there later
    config = {"model": model, "drafters": drafters, "log": _log(settings), **_given(chosen)}
    for number, (grpc, http) in enumerate(zip(addresses.verifier, addresses.verifier_http, strict=True), 1):
        yield _service("verifier", number, http, grpc, config)


def _gateways(settings: UpSettings, addresses: Addresses, redis_url: str) -> Iterator[Service]:
    model = {"path": _absolute(settings.target), "name": settings.served_name}
    chosen = {"mode": settings.mode and settings.mode.value}
    fixed = {"model": model, "verifiers": addresses.verifier, "redis_url": redis_url, "log": _log(settings)}
    config = {**fixed, **_given(chosen), "drain": {"limit": _DRAIN_SECONDS}}
    for number, (grpc, http) in enumerate(zip(addresses.gateway, addresses.gateway_http, strict=True), 1):
        yield _service("gateway", number, http, grpc, config)


def _service(role: Role, number: int, http: str, grpc: str, config: Mapping[str, Any]) -> Service:
    return Service(role, f"{role}-{number}", http, grpc, {**config, "address": grpc, "http": http})


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _log(settings: UpSettings) -> dict[str, Any]:
    return settings.log.model_dump()


def _absolute(path: Path) -> str:
    return str(find_model(path).resolve())

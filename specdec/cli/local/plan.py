"""Plan every process of `specdec up` and its configuration from the settings, without starting or writing anything."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from specdec.cli.known_models import KNOWN
from specdec.cli.local import ports, vllm
from specdec.cli.settings import UpSettings, find_model, is_encoder_decoder, source_names
from specdec.errors import ConfigError
from specdec.serving.addresses import split_address

Role = Literal["drafter", "verifier", "gateway"]

MODULES: Mapping[Role, str] = {
    "drafter": "drafter_service",
    "verifier": "verifier_service",
    "gateway": "gateway",
}

PRELOAD: Mapping[Role, tuple[str, ...]] = {
    "drafter": ("specdec.engine",),
    "verifier": ("specdec.engine",),
    "gateway": ("gateway.http.preload",),
}
"""Modules that take seconds to import: processes with the same preload are forked after one import."""

NICE: Mapping[Role, int] = {"drafter": 0, "verifier": 0, "gateway": 1}
"""Niceness of each role. A process with one above 0 leaves the first of several processors to the models."""
STORE_NICE = 1
"""Niceness of a store."""

_WIDE_THREADS = 2
"""Default for the most threads of a target in passes over many tokens."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Name of a model on the Hugging Face Hub, which is also a valid relative path."""
_MODEL_FILES = {"model": "config.json", "hybrid": "config.json", "counts": "counts.safetensors"}
"""Required file in the folder of each kind of drafter that needs a folder."""
_DRAIN_SECONDS = 5.0
"""Drain limit of the gateways, short because a user who presses Ctrl-C does not wait for long streams."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the processes; entry i belongs to process i + 1 of its role."""

    gateway_http: list[str]
    gateway: list[str]
    drafter: list[str]
    verifier: list[str]
    drafter_http: list[str]
    verifier_http: list[str]


@dataclass(frozen=True, slots=True)
class Service:
    """One process of a service, and the content of its configuration file."""

    role: Role
    name: str
    """Name of the process, for example `drafter-1`."""
    http: str
    grpc: str
    config: dict[str, Any]
    python: Path | None = None
    """Python interpreter of the process; None is the current one."""


def check_models(settings: UpSettings) -> None:
    """Check that the model folders exist, and the environment if the backend needs one.

    Raises:
        ConfigError: a folder does not exist or is not a model folder, or the environment does not exist.
    """
    vllm.interpreter(settings)
    _check("--target", settings.target, "config.json")
    if settings.head is not None:
        _check("--head", settings.head, "config.json")
    elif settings.drafter_kind == "head":
        raise ConfigError("--drafter-kind head needs the folder of the head: give it with --head FOLDER")
    if "head" in source_names(settings.local) and settings.drafter_kind == "head":
        raise ConfigError("--local head drafts in the verifiers, --drafter-kind head in drafters: give one of them")
    if "head" in source_names(settings.local) and settings.head is None:
        raise ConfigError("--local head needs the folder of the head: give it with --head FOLDER")
    if settings.drafters and settings.drafter_kind in _MODEL_FILES:
        _check("--drafter", settings.drafter, _MODEL_FILES[settings.drafter_kind])
        _check_architectures(settings)


def _check_architectures(settings: UpSettings) -> None:
    """Refuse a draft model that is an encoder-decoder where the target is a decoder, and the reverse."""
    if settings.drafter_kind not in ("model", "hybrid"):
        return
    target, drafter = (is_encoder_decoder(find_model(each)) for each in (settings.target, settings.drafter))
    if target is not drafter:
        kinds = {True: "an encoder-decoder", False: "decoder-only"}
        raise ConfigError(f"--drafter {settings.drafter} is {kinds[drafter]}, and the target {kinds[target]}")


def _check(option: str, path: Path, file: str) -> None:
    if str(path) in KNOWN and not find_model(path).exists():
        raise ConfigError(f"{option} {path} is not on this machine yet: specdec models get {path}")
    if find_model(path) == path and not path.exists() and _HUB_ID.fullmatch(str(path)):
        raise ConfigError(
            f"{option} {path}: the Hub's cache on this disk has no such model, and nothing is downloaded here; "
            f"fetch it with hf download {path}, or give {option} FOLDER"
        )
    if path.suffix == ".gguf":
        raise ConfigError(f"{option} {path}: first specdec models get {path}, then {option} {path.stem}")
    if not find_model(path).is_dir():
        raise ConfigError(f"no model folder at {path}: give one with {option} PATH")
    if not (find_model(path) / file).is_file():
        raise ConfigError(f"{path} is not such a model's folder, it has no {file}: give one with {option} PATH")


def wanted(settings: UpSettings) -> list[ports.Wanted]:
    """The addresses of each kind, in the order of the fields of `Addresses`.

    Metrics are only read at the address that is printed, so their default addresses need not be exact. A system without
    drafters reserves addresses for a drafter that is started later. The drafter's gRPC address may be taken, by a
    drafter that already runs.
    """
    given = settings.model_fields_set
    drafters = settings.drafters or int(split_address(settings.drafter_address)[1] == 0)
    drafter_metrics, verifier_metrics = ("drafter_metrics" in given, "verifier_metrics" in given)
    return [
        ports.Wanted("--http", settings.http, settings.gateways),
        ports.Wanted("--grpc", settings.grpc, settings.gateways),
        ports.Wanted("--drafter-address", settings.drafter_address, drafters),
        ports.Wanted("--verifier-address", settings.verifier_address, settings.verifiers),
        ports.Wanted("--drafter-metrics", settings.drafter_metrics, max(1, settings.drafters), drafter_metrics),
        ports.Wanted("--verifier-metrics", settings.verifier_metrics, settings.verifiers, verifier_metrics),
    ]


def allot(settings: UpSettings, reserved: ports.Reservations | None = None) -> Addresses:
    """Find an address for every process, and for a drafter that is started later if the system has none.

    Args:
        settings: number and addresses of the processes.
        reserved: reserves the addresses against other systems; None only finds them.

    Raises:
        ConfigError: an address of the settings is taken.
    """
    found = Addresses(*ports.allot(wanted(settings), reserved))
    return found if found.drafter else replace(found, drafter=[settings.drafter_address])


def services(
    settings: UpSettings, addresses: Addresses, redis_url: str, kv_redis_url: str = "", token: str = ""
) -> list[Service]:
    """Every process in start order: a process starts after the processes that it connects to.

    Args:
        kv_redis_url: URL of the KV store; empty for none.
        token: secret with which the services authenticate to each other; empty for none.
    """
    shared = {"token": token}
    drafter = _drafter_config(settings) | shared
    verifier, python = _verifier_config(settings, addresses.drafter) | shared, vllm.interpreter(settings)
    gateway = _gateway_config(settings, addresses.verifier, redis_url, kv_redis_url) | shared
    started = settings.drafters
    return [
        *_services("drafter", addresses.drafter[:started], addresses.drafter_http[:started], drafter),
        *(
            replace(each, python=python)
            for each in _services("verifier", addresses.verifier, addresses.verifier_http, verifier)
        ),
        *_services("gateway", addresses.gateway, addresses.gateway_http, gateway),
    ]


def later_drafter(settings: UpSettings, addresses: Addresses, token: str) -> Service:
    """The drafter that a system without drafters would use if the user starts it later."""
    config = _drafter_config(settings) | {"token": token}
    (drafter,) = _services("drafter", addresses.drafter, addresses.drafter_http, config)
    return drafter


def _services(role: Role, grpc: Sequence[str], http: Sequence[str], config: Mapping[str, Any]) -> Iterator[Service]:
    """The processes of one role, which differ only in their addresses."""
    for number, (address, metrics) in enumerate(zip(grpc, http, strict=True), 1):
        yield Service(role, f"{role}-{number}", metrics, address, {**config, "address": address, "http": metrics})


def _drafter_config(settings: UpSettings) -> dict[str, Any]:
    kind = settings.drafter_kind
    folder = settings.drafter if kind in _MODEL_FILES else settings.target  # other kinds need parts of the target
    model = {"path": _absolute(folder), "dtype": settings.dtype, "compile": settings.compile}
    # A setting of this release is written only where it differs, so that services of the last one can read the rest.
    backend = {"backend": "transformers"} if settings.backend == "transformers" else {}
    local = {"local": source_names(settings.drafter_local)} if settings.drafter_local else {}
    own = backend | local | (_head(settings, "head") if kind == "head" else {}) | _sources(settings)
    return {"kind": kind, "model": model, **own, "log": settings.log.model_dump()}


def _verifier_config(settings: UpSettings, drafters: Sequence[str]) -> dict[str, Any]:
    model = {"dtype": settings.dtype, "compile": settings.compile, **_target(settings)}
    config = {"model": model, "drafters": drafters, "log": settings.log.model_dump(), **_mode(settings)}
    config |= {"local": source_names(settings.local), "drafter": settings.default_drafter}
    config |= {"drafter_vocabulary": settings.drafter_vocabulary, "backend": settings.backend}
    config |= _sources(settings) | ({} if settings.drafters else {"drafters_expected": False})
    config |= _head(settings, "drafter_head" if settings.drafter_kind == "head" else "head")
    if settings.backend == "native":
        config["wide_threads"] = settings.wide_threads or max(1, min(_WIDE_THREADS, cores() // settings.verifiers))
    tree = None if settings.tree is None else asdict(settings.tree) | {"drafters": list(settings.tree.drafters)}
    chosen = {"gamma": settings.gamma, "lenience": settings.lenience, "tree": tree}
    return config | {name: value for name, value in chosen.items() if value is not None}


def _head(settings: UpSettings, name: str) -> dict[str, Any]:
    """The setting of the head's folder under the name that a service has for it; empty without a head."""
    return {} if settings.head is None else {name: _absolute(settings.head)}


def _sources(settings: UpSettings) -> dict[str, Any]:
    """The settings of sources without a model, where they differ from the defaults."""
    return {"sources": {"sampled": True}} if settings.sampled else {}


def _gateway_config(settings: UpSettings, verifiers: Sequence[str], redis_url: str, kv: str) -> dict[str, Any]:
    return {
        "model": _target(settings),
        "verifiers": verifiers,
        "redis_url": redis_url,
        "kv": {"redis_url": kv},
        "log": settings.log.model_dump(),
        "drain": {"limit": _DRAIN_SECONDS},
        **({"generation_config": settings.generation_config} if settings.generation_config != "auto" else {}),
        **({"reasoning_parser": settings.reasoning_parser} if settings.reasoning_parser != "auto" else {}),
        **({"cors_origins": list(settings.cors_origins)} if settings.cors_origins else {}),
        **({"api_keys": str(settings.api_keys.resolve())} if settings.api_keys else {}),
        **_mode(settings),
    }


def _target(settings: UpSettings) -> dict[str, Any]:
    return {"path": _absolute(settings.target), "name": settings.served_name}


def _mode(settings: UpSettings) -> dict[str, Any]:
    """The mode if one is set; else the services use their default."""
    return {} if settings.mode is None else {"mode": settings.mode.value}


def cores() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _absolute(path: Path) -> str:
    return str(find_model(path).resolve())

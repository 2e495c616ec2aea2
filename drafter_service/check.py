"""What `specdec doctor` asks the drafter: does its model load and draft, and are its ports free."""

import json
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

from drafter_service.app import load_drafter
from drafter_service.config import DrafterSettings
from specdec.errors import ConfigError
from specdec.serving.settings import split_address


@dataclass(frozen=True, slots=True)
class Line:
    """One finding."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""


def check(settings: DrafterSettings, write: Callable[[str], object]) -> bool:
    """Write one JSON object a line for each thing looked at; False when something must be mended."""
    lines = [*_model(settings), _port("http", settings.http), _port("address", settings.address)]
    for line in lines:
        write(json.dumps(asdict(line)) + "\n")
    return all(line.status != "fail" for line in lines)


def _model(settings: DrafterSettings) -> list[Line]:
    try:
        info = load_drafter(settings).info
    except ConfigError as error:
        return [Line("model", "fail", error.message, "set model.path to the folder of a model it can serve")]
    step = f"{info.step_seconds * 1000:.1f} ms a step"
    return [
        Line("model", "ok", f"{settings.model.path} loads, context {info.context_length}, {step}"),
        Line("tokenizer", "ok", f"{info.vocab_size} ids, fingerprint {info.tokenizer_hash}"),
    ]


def _port(name: str, address: str) -> Line:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        detail = f"cannot listen on {address}: {error.strerror}"
        return Line(name, "warn", detail, f"end what listens there, unless it is this drafter, or set {name}")
    return Line(name, "ok", f"{address} is free")

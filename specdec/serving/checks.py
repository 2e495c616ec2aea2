"""What a service finds when asked whether it could run: the lines that `specdec doctor` merges."""

import json
import socket
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from specdec.serving.settings import split_address


@dataclass(frozen=True, slots=True)
class Line:
    """One finding."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""


def write_lines(lines: Iterable[Line], write: Callable[[str], object]) -> bool:
    """Write one JSON object a line; False when something must be mended."""
    mended = True
    for line in lines:
        write(json.dumps(asdict(line)) + "\n")
        mended = mended and line.status != "fail"
    return mended


def port_line(name: str, address: str) -> Line:
    """Whether this machine can listen on the address of the setting `name`."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        detail = f"cannot listen on {address}: {error.strerror}"
        return Line(name, "warn", detail, f"end what listens there, unless it is this service, or set {name}")
    return Line(name, "ok", f"{address} is free")

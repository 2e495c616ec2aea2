"""How a gateway is reached: its address, the API key that calls carry, and whose certificates are trusted."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from pydantic import SecretStr

from specdec.errors import ConfigError
from specdec.serving.rpc.access import Access

OPTIONS = (("grpc.enable_http_proxy", 0),)
"""Of every channel: the environment's proxies are for the web."""


@dataclass(frozen=True, slots=True)
class GatewayConnection:
    """How a gateway's gRPC API is reached."""

    address: str
    """`host:port`."""
    key: str = field(default="", repr=False)
    """The API key that every call carries; empty for none."""
    ca: Path | None = None
    """PEM file of the authorities that the gateway's certificate comes from; None for plaintext."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\x21-\x7e]*", self.key):
            raise ConfigError("the API key must be of printable ASCII characters without spaces and line ends")

    def open(self) -> grpc.Channel:
        """A channel; raises ConfigError when the file cannot be read."""
        if self.ca is None:
            return grpc.insecure_channel(self.address, options=OPTIONS)
        try:
            credentials = grpc.ssl_channel_credentials(self.ca.read_bytes())
        except OSError as error:
            raise ConfigError(f"ca {self.ca}: {error.strerror}") from error
        return grpc.secure_channel(self.address, credentials, options=OPTIONS)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return Access(token=SecretStr(self.key)).metadata

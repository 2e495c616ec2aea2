"""Connection to a gateway: its address, API key and trusted authorities."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
from pydantic import SecretStr

from specdec.errors import ConfigError
from specdec.serving.rpc.access import Access

OPTIONS = (("grpc.enable_http_proxy", 0),)
"""Options of every channel. The environment's proxies are meant for the web and are not used."""


@dataclass(frozen=True, slots=True)
class GatewayConnection:
    """Address and credentials of a gateway's gRPC API."""

    address: str
    """`host:port`."""
    key: str = field(default="", repr=False)
    """API key sent with every call; empty for none."""
    ca: Path | None = None
    """PEM file of the authorities that sign the gateway's certificate; None for plaintext."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\x21-\x7e]*", self.key):
            raise ConfigError("the API key must be of printable ASCII characters without spaces and line ends")

    def open(self) -> grpc.Channel:
        """Open a channel. Raises ConfigError if the file cannot be read."""
        if self.ca is None:
            return grpc.insecure_channel(self.address, options=OPTIONS)
        return grpc.secure_channel(self.address, self._credentials(self.ca), options=OPTIONS)

    def open_async(self) -> grpc.aio.Channel:
        """Open a channel for the running event loop. Raises ConfigError if the file cannot be read."""
        if self.ca is None:
            return grpc.aio.insecure_channel(self.address, options=OPTIONS)
        return grpc.aio.secure_channel(self.address, self._credentials(self.ca), options=OPTIONS)

    @staticmethod
    def _credentials(ca: Path) -> grpc.ChannelCredentials:
        try:
            return grpc.ssl_channel_credentials(ca.read_bytes())
        except OSError as error:
            raise ConfigError(f"ca {ca}: {error.strerror}") from error

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call."""
        return Access(token=SecretStr(self.key)).metadata

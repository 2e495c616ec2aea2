"""The constructor that both clients share."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

from specdec.client.connection import GatewayConnection
from specdec.client.reading import Retries

C = TypeVar("C")


class BaseClient(ABC, Generic[C]):
    """Channels to gateways that share a session store."""

    def __init__(
        self,
        *addresses: str,
        api_key: str = "",
        ca: Path | None = None,
        timeout: float = 600.0,
        retries: Retries | None = None,
    ) -> None:
        """Create the client. It connects on the first request.

        Args:
            addresses: gRPC addresses of the gateways, `host:port`; defaults to 127.0.0.1:50051.
            api_key: API key sent with every call; empty for none.
            ca: PEM file of the authorities that sign the gateways' certificates; None for plaintext.
            timeout: timeout of one generation, in seconds, over all its calls; also that of any other call.
            retries: retry policy for calls that break; None takes its defaults.

        Raises:
            ConfigError: the key is malformed, or the file cannot be read.
        """
        connections = [GatewayConnection(each, api_key, ca) for each in addresses or ("127.0.0.1:50051",)]
        self._channels = [self._open(each) for each in connections]
        self._metadata = connections[0].metadata
        self._timeout = timeout
        self._retries = retries or Retries()

    @staticmethod
    @abstractmethod
    def _open(connection: GatewayConnection) -> C:
        """Open a channel to a gateway."""

"""Mutual TLS between the services: PEM files in, credentials out, and new files taken without a restart."""

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import grpc
from pydantic import model_validator

from specdec.errors import ConfigError
from specdec.serving.settings import Section


class TlsSettings(Section):
    """Who this process is, and whom it trusts; with none of the three files, calls are plaintext."""

    certificate: Path | None = None
    """PEM file of the certificate chain, for servers and clients alike; it is read again when it changes."""
    key: Path | None = None
    """PEM file of its private key."""
    ca: Path | None = None
    """PEM file of the authorities whose certificates are accepted; who has none of theirs is refused."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = {self.certificate is None, self.key is None, self.ca is None}
        if len(given) > 1:
            raise ValueError("certificate, key and ca are given together or not at all")
        return self


class DialTlsSettings(TlsSettings):
    """The same for a process that dials others."""

    peer: str = ""
    """DNS name in the certificates of those who are dialled; empty for the one in their address."""


class Pems(NamedTuple):
    """What the files hold."""

    certificate: bytes
    key: bytes
    ca: bytes


class Certificates:
    """The files of one process; one that cannot be read leaves what was read before."""

    def __init__(self, certificate: Path, key: Path, ca: Path, peer: str = "") -> None:
        """Read them for the first time.

        Raises:
            ConfigError: one cannot be read.
        """
        self._paths = (certificate, key, ca)
        self.peer = peer
        try:
            self._pems = self._read()
        except OSError as error:
            raise ConfigError(f"tls file {error.filename}: {error.strerror}") from error

    @classmethod
    def of(cls, settings: TlsSettings) -> "Certificates | None":
        """Those that the settings name, or None for plaintext.

        Raises:
            ConfigError: one cannot be read.
        """
        if settings.certificate is None or settings.key is None or settings.ca is None:
            return None
        peer = settings.peer if isinstance(settings, DialTlsSettings) else ""
        return cls(settings.certificate, settings.key, settings.ca, peer)

    @property
    def pems(self) -> Pems:
        """What the files hold now."""
        with suppress(OSError):
            self._pems = self._read()
        return self._pems

    def for_server(self) -> grpc.ServerCredentials:
        """Credentials that ask for the files at every handshake, and for the client's certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._configuration, require_client_authentication=True
        )

    def for_channel(self) -> grpc.ChannelCredentials:
        """Credentials of one channel, which keeps them for its life."""
        pems = self.pems
        return grpc.ssl_channel_credentials(pems.ca, pems.key, pems.certificate)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pems = self.pems
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.ca)

    def _read(self) -> Pems:
        return Pems(*(path.read_bytes() for path in self._paths))

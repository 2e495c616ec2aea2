"""TLS from PEM files that are reloaded on change: mutual between services, one-way for callers."""

import asyncio
import math
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import grpc
from prometheus_client import CollectorRegistry, Gauge
from pydantic import model_validator

from specdec.errors import ConfigError
from specdec.serving.settings import Section

RELOAD = 1.0
"""Interval between checks of the files, in seconds."""


class TlsSettings(Section):
    """The certificate of this process and the authorities it trusts; without the files, calls are plaintext."""

    certificate: Path | None = None
    """PEM file of the certificate chain, for servers and clients alike; it is read again when it changes."""
    key: Path | None = None
    """PEM file of the private key."""
    ca: Path | None = None
    """PEM file of the authorities whose certificates are accepted from other services."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = {self.certificate is None, self.key is None, self.ca is None}
        if len(given) > 1:
            raise ValueError("certificate, key and ca are given together or not at all")
        return self


class PublicTlsSettings(Section):
    """The certificate that callers see; without the files, they are served in plaintext."""

    certificate: Path | None = None
    """PEM file of the certificate chain for HTTP and gRPC; it is read again when it changes."""
    key: Path | None = None
    """PEM file of the private key."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are given together or not at all")
        return self


class DialTlsSettings(TlsSettings):
    """The TLS settings of a process that connects to other services."""

    peer: str = ""
    """The DNS name in the certificates of these services; empty takes the host of their address."""


class Pems(NamedTuple):
    """Contents of the certificate files."""

    certificate: bytes
    key: bytes
    ca: bytes
    """Empty if clients need no certificate."""


class Certificates:
    """Certificate files of one process. While a file cannot be read, its last content is used."""

    def __init__(self, certificate: Path, key: Path, ca: Path | None, peer: str = "") -> None:
        """Read the files. Without `ca`, clients need no certificate.

        Raises:
            ConfigError: a file cannot be read.
        """
        self._paths = (certificate, key, ca)
        self.peer = peer
        try:
            self._pems = self._read()
        except OSError as error:
            raise ConfigError(f"tls file {error.filename}: {error.strerror}") from error

    @classmethod
    def of(cls, settings: TlsSettings | PublicTlsSettings) -> "Certificates | None":
        """Create certificates from the settings, or return None for plaintext. Raises the errors of the constructor."""
        if settings.certificate is None or settings.key is None:
            return None
        ca = settings.ca if isinstance(settings, TlsSettings) else None
        peer = settings.peer if isinstance(settings, DialTlsSettings) else ""
        return cls(settings.certificate, settings.key, ca, peer)

    @property
    def pems(self) -> Pems:
        """Current contents of the files."""
        with suppress(OSError):
            self._pems = self._read()
        return self._pems

    @property
    def expiry(self) -> float:
        """Expiry of the certificate in seconds since 1970; NaN if it is not an X.509 certificate."""
        from cryptography.x509 import load_pem_x509_certificate

        try:
            return load_pem_x509_certificate(self.pems.certificate).not_valid_after_utc.timestamp()
        except ValueError:
            return math.nan

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each change of the files."""
        known = self.pems
        while True:
            await asyncio.sleep(RELOAD)
            if (present := self.pems) != known:
                known = present
                yield

    def for_server(self) -> grpc.ServerCredentials:
        """Return credentials with the current certificate. With a `ca`, clients must present a certificate signed by
        it.

        Raises:
            ConfigError: certificate and key do not match, or cannot be read.
        """
        try:
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # gRPC would report a taken port
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ConfigError(f"tls: certificate and key cannot be used: {error}") from error
        pems = self.pems
        return grpc.ssl_server_credentials(
            [(pems.key, pems.certificate)], pems.ca or None, require_client_auth=bool(pems.ca)
        )

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load this certificate into an SSL context of the standard library. Raises OSError if it cannot be used."""
        certificate, key, _ = self._paths
        context.load_cert_chain(certificate, key)

    def for_channel(self) -> grpc.ChannelCredentials:
        """Return credentials for one channel, which keeps them until it is closed."""
        pems = self.pems
        return grpc.ssl_channel_credentials(pems.ca, pems.key, pems.certificate)

    def _read(self) -> Pems:
        return Pems(*(path.read_bytes() if path else b"" for path in self._paths))


def watch_expiry(certificates: Certificates | None, registry: CollectorRegistry, *, public: bool = False) -> None:
    """Export the expiry of this process's certificate, or of the `public` one; nothing for plaintext."""
    if certificates is not None:
        kind, whom = ("public_certificate", "callers") if public else ("certificate", "other services")
        help_text = f"When the certificate that {whom} see ends, since 1970."
        gauge = Gauge(f"specdec_{kind}_expiry_timestamp_seconds", help_text, registry=registry)
        gauge.set_function(lambda: certificates.expiry)

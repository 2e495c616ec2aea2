"""Stores an installation's CA and certificates in Kubernetes Secrets, and renews those that are missing or old."""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog

from gateway.certificates.authority import KeyPair, issue, make_authority
from gateway.certificates.config import CertificateSettings
from gateway.discovery.cluster import connect, found
from specdec.errors import ConfigError

_log = structlog.get_logger()


async def make_certificates(settings: CertificateSettings) -> None:
    """Ensure a valid certificate in every Secret of the settings. Valid certificates stay unchanged.

    Raises:
        ConfigError: the cluster cannot be reached, or the Secret of the authority holds something else.
        ApiException, OSError: the API server does not answer, or denies access.
    """
    async with connect(settings.cluster) as api:
        kept = KeptCertificates(api, settings)
        authority = await kept.authority()
        for secret, names in settings.names.items():
            await kept.certificate(secret, names, authority)


class KeptCertificates:
    """The Secrets of one installation."""

    def __init__(self, api: Any, settings: CertificateSettings) -> None:
        """Use an ApiClient of kubernetes.aio; raises ConfigError when no namespace is known."""
        from kubernetes.aio import client

        self._client = client
        self._secrets = client.CoreV1Api(api)
        self._settings = settings
        self._namespace = settings.cluster.chosen_namespace
        self._timeout = settings.cluster.timeout

    async def authority(self) -> KeyPair:
        """Return the authority. A missing or old one is replaced."""
        name, now = self._settings.authority, datetime.now(UTC)
        held = await self._read(name)
        pair = _key_pair(held)
        if held is not None and pair is None:
            raise ConfigError(f"secret {name} holds no authority: delete it, and a new one is made")
        if pair is not None and pair.is_fresh(now):
            return pair
        made = make_authority(name, self._settings.days, now)
        await self._write(name, _data(made, made), held)
        return made

    async def certificate(self, name: str, names: Sequence[str], authority: KeyPair) -> None:
        """Ensure that the Secret holds a certificate of this authority for these DNS names."""
        now = datetime.now(UTC)
        held = await self._read(name)
        pair = _key_pair(held)
        if pair is not None and pair.is_issued_by(authority, names) and pair.is_fresh(now):
            return
        await self._write(name, _data(issue(authority, names, self._settings.days, now), authority), held)

    async def _read(self, name: str) -> Any:
        """Return the Secret, or None if it does not exist."""
        return await found(self._secrets.read_namespaced_secret(name, self._namespace, _request_timeout=self._timeout))

    async def _write(self, name: str, data: Mapping[str, str], held: Any) -> None:
        """Create the Secret, or replace `held`; fails if the Secret was changed after `held` was read."""
        place = {"namespace": self._namespace, "_request_timeout": self._timeout}
        if held is None:
            metadata = self._client.V1ObjectMeta(name=name, labels=self._settings.labels)
            made = self._client.V1Secret(metadata=metadata, type="kubernetes.io/tls", data=dict(data))
            await self._secrets.create_namespaced_secret(body=made, **place)
        else:
            held.data = dict(data)
            await self._secrets.replace_namespaced_secret(name=name, body=held, **place)
        _log.info("certificate_made", secret=name, anew=held is not None)


def _key_pair(secret: Any) -> KeyPair | None:
    """Return the key pair in a Secret; None if it holds no certificate with its key."""
    data: Mapping[str, str] = (secret.data if secret is not None else None) or {}
    try:
        return KeyPair.from_pems(base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"]))
    except (KeyError, ValueError, TypeError):
        return None


def _data(pair: KeyPair, authority: KeyPair) -> dict[str, str]:
    pems = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem, "ca.crt": authority.certificate_pem}
    return {key: base64.b64encode(pem).decode() for key, pem in pems.items()}

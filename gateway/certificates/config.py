"""The settings of the Job that makes certificates."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gateway.discovery.cluster import ClusterSettings
from specdec.serving.settings import Settings

DnsNames = Annotated[tuple[str, ...], Field(min_length=1)]


class CertificateSettings(Settings):
    """Defaults < SPECDEC_CERTIFICATES_*, where maps are JSON."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_CERTIFICATES_")

    authority: str
    """The Secret of the authority; it is made when there is none, and only this Job reads it."""
    names: dict[str, DnsNames]
    """For each Secret with a certificate, its DNS names."""
    days: int = Field(default=3650, ge=1)
    """Lifetime of the authority and its certificates, in days. Each is replaced when less than a third is left."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the Secrets."""
    cluster: ClusterSettings = ClusterSettings()

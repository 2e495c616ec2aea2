"""The settings of the ratio controller."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from gateway.discovery.cluster import ClusterSettings
from specdec.serving.addresses import Address
from specdec.serving.settings import Section, Settings


class MetricsSettings(Section):
    """Source of the live metrics: a Prometheus server, or else the /metrics of the replicas."""

    prometheus: str = ""
    """Base URL of the Prometheus; empty to read the replicas."""
    matchers: str = ""
    """Label matchers that narrow the series read from Prometheus, such as `namespace="a"`."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers of every query, such as `X-Scope-OrgID`."""
    token_file: Path | None = None
    """File with a bearer token for Prometheus; it is read again for every query."""
    window: int = Field(default=300, ge=1)
    """Seconds over which Prometheus sums the counters."""
    verifiers: tuple[Address, ...] = ()
    """`host:port` of the verifiers' /metrics; each A and AAAA record of a name is one replica."""
    drafters: tuple[Address, ...] = ()
    """`host:port` of the drafters' /metrics; each A and AAAA record of a name is one replica."""
    timeout: float = Field(default=5.0, gt=0)
    """Timeout of a query, in seconds."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.prometheus and not self.verifiers:
            raise ValueError("set prometheus, or verifiers and drafters")
        return self


class LeaseSettings(Section):
    """The Lease whose holder is the one replica of the controller that acts."""

    name: str = "specdec-ratio-controller"
    """The Lease's name, in the namespace of the cluster settings."""
    duration: float = Field(default=30.0, ge=3)
    """Seconds without a renewal after which another replica takes over."""


class ScalingSettings(Section):
    """The rules for the number of drafters."""

    minimum: int = Field(default=1, ge=0)
    """Smallest number of drafters, also while drafting does not pay; with 0, one is tried every `retry` seconds."""
    maximum: int = Field(default=64, ge=1)
    """Largest number of drafters."""
    verify_busy: float = Field(default=0.8, gt=0, le=1)
    """Target share of time that verifiers are busy."""
    draft_busy: float = Field(default=0.8, gt=0, le=1)
    """Target share of time that drafters are busy."""
    min_speedup: float = Field(default=1.05, ge=0)
    """Speed-up of a session that drafts must reach; below it, the number of drafters falls to the minimum."""
    draft_batch: float = Field(default=0.0, ge=0)
    """Sessions that one drafter step should hold; a larger measured batch is used instead. With 0, surplus drafters are
    not detected: they share the sessions, and their small batches make all of them seem needed."""
    starved: float = Field(default=0.1, gt=0, lt=1)
    """Share of rounds with too few drafts above which a drafter is added regardless of the ratio."""
    idle: float = Field(default=0.5, gt=0, lt=1)
    """Share of busy time below which drafters are removed, unless rounds lack drafts."""
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    """Relative difference to the current number below which nothing changes."""
    up_seconds: float = Field(default=30.0, ge=0)
    """Seconds that a higher number must be recommended before drafters are added."""
    down_seconds: float = Field(default=300.0, ge=0)
    """Seconds that a lower number must be recommended before drafters are removed; longer than a model loads."""
    retry: float = Field(default=600.0, gt=0)
    """Seconds without drafters after which drafting is tried again."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is over maximum {self.maximum}")
        return self


class RatioSettings(Settings):
    """All settings; flags win over SPECDEC_RATIO_* in the environment, that over the YAML file, that over defaults."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_RATIO_")

    deployment: str
    """The Deployment of the drafters, of which the controller changes the scale and nothing else."""
    metrics: MetricsSettings
    http: Address = "127.0.0.1:0"
    """The address of /metrics, /livez and /readyz."""
    interval: float = Field(default=10.0, gt=0)
    """Seconds between decisions."""
    dry_run: bool = False
    """Log and export each decision, and change nothing."""
    cluster: ClusterSettings = ClusterSettings()
    lease: LeaseSettings = LeaseSettings()
    scaling: ScalingSettings = ScalingSettings()

    @model_validator(mode="after")
    def _renews_in_time(self) -> Self:
        if self.lease.duration < 2 * (self.interval + self.metrics.timeout):
            raise ValueError("lease.duration must be at least twice interval and metrics.timeout together")
        return self

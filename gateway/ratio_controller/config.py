"""What the ratio controller can be told."""

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from gateway.discovery.cluster import ClusterSettings
from specdec.serving.settings import Address, Section, Settings


class MetricsSettings(Section):
    """Where the live numbers come from: a Prometheus, or else the replicas' own /metrics."""

    prometheus: str = ""
    """Base URL; empty to ask the replicas."""
    matchers: str = ""
    """Narrow the series asked of Prometheus, as in `namespace="a"`."""
    window: int = Field(default=300, ge=1)
    """Seconds that Prometheus looks back."""
    verifiers: tuple[Address, ...] = ()
    """`host:port` of the verifiers' /metrics; each A and AAAA record of a name is one replica."""
    drafters: tuple[Address, ...] = ()
    """The same of the drafters."""
    timeout: float = Field(default=5.0, gt=0)
    """Seconds an answer may take."""

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.prometheus and not self.verifiers:
            raise ValueError("set prometheus, or verifiers and drafters")
        return self


class LeaseSettings(Section):
    """The Lease that says which replica of the controller acts."""

    name: str = "specdec-ratio-controller"
    """In the cluster's namespace."""
    duration: float = Field(default=30.0, ge=3)
    """Seconds of silence after which another replica takes over."""


class ScalingSettings(Section):
    """How many drafters there should be."""

    minimum: int = Field(default=1, ge=0)
    """Kept while drafting does not pay, too; with 0 one drafter is tried every `retry` seconds."""
    maximum: int = Field(default=64, ge=1)
    """Never more than these."""
    verify_busy: float = Field(default=0.8, gt=0, le=1)
    """How busy verifiers are sized to be."""
    draft_busy: float = Field(default=0.8, gt=0, le=1)
    """How busy drafters are sized to be."""
    min_speedup: float = Field(default=1.05, ge=0)
    """A session must gain this much from drafts, or else the drafters go down to the minimum."""
    draft_batch: float = Field(default=0.0, ge=0)
    """Sessions that one drafter step should hold; the measured batch when that is larger. Left at 0, drafters that are
    too many are not noticed: they share the sessions, and the small batches they measure make them look needed."""
    starved: float = Field(default=0.1, gt=0, lt=1)
    """Share of rounds short of drafts above which a drafter is added whatever the ratio says."""
    idle: float = Field(default=0.5, gt=0, lt=1)
    """How busy drafters must be for the ratio to be believed; below it, and with nobody starved, they are fewer."""
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    """Relative difference to what there is that is not worth a change."""
    up_seconds: float = Field(default=30.0, ge=0)
    """More drafters are wanted for so long before they are added."""
    down_seconds: float = Field(default=300.0, ge=0)
    """Fewer drafters are wanted for so long before any goes; longer than a model takes to load."""
    retry: float = Field(default=600.0, gt=0)
    """Seconds without drafters after which drafting is tried again."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum} is over maximum {self.maximum}")
        return self


class RatioSettings(Settings):
    """Defaults < YAML file < SPECDEC_RATIO_* < flags."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_RATIO_")

    deployment: str
    """The drafters' Deployment: the only thing that is ever changed, and only its scale."""
    metrics: MetricsSettings
    http: Address = "127.0.0.1:0"
    """Where /metrics, /livez and /readyz listen."""
    interval: float = Field(default=10.0, gt=0)
    """Seconds between decisions."""
    dry_run: bool = False
    """Decide, log and export, and change nothing."""
    cluster: ClusterSettings = ClusterSettings()
    lease: LeaseSettings = LeaseSettings()
    scaling: ScalingSettings = ScalingSettings()

    @model_validator(mode="after")
    def _renews_in_time(self) -> Self:
        if self.lease.duration < 2 * (self.interval + self.metrics.timeout):
            raise ValueError("lease.duration must be at least twice interval and metrics.timeout together")
        return self

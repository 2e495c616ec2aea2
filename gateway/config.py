"""The settings of the gateway."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from gateway.discovery.cluster import ClusterSettings
from gateway.discovery.sources import GatewayDiscoverySettings
from gateway.tools.thinking import AUTO, check_parser
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.rules.speculation import Mode
from specdec.serving.addresses import Address
from specdec.serving.rpc.access import NO_TOKEN, Token
from specdec.serving.rpc.tls import DialTlsSettings, PublicTlsSettings
from specdec.serving.settings import HostNames, Origins, Section, Settings, TokenizerSettings
from specdec.serving.telemetry.tracing import OtelSettings

ReasoningParser = Annotated[str, AfterValidator(check_parser)]


class FailoverSettings(Section):
    """Waiting times of a generation that has lost its verifier."""

    attempts: int = Field(default=5, ge=0)
    """Verifiers lost in a row, without a committed round between, after which it gives up."""
    seconds: float = Field(default=30.0, ge=0)
    """Time without any ready verifier after which it gives up."""
    arrival: float = Field(default=2.0, ge=0)
    """Seconds a request that has not begun waits for a ready verifier."""


class DrainSettings(Section):
    """Timeouts of the gateway's shutdown."""

    settle: float = Field(default=0.0, ge=0)
    """Seconds between being not ready and refusing new work, in which load balancers take notice."""
    limit: float = Field(default=25.0, ge=0)
    """Seconds that running generations are given to finish."""


class AdmissionSettings(Section):
    """Limits on the work that a gateway does at once. A request over a limit gets 429 with `Retry-After`, or
    RESOURCE_EXHAUSTED."""

    running: int = Field(default=1024, ge=16)
    """Generations that run at once; a key gets 7 in 8 of them, an address without 3 in 4. One request has up to 16."""
    calls: int = Field(default=64, ge=1)
    """Other calls on sessions and generations that use the session store at once."""
    waiting: int = Field(default=4096, ge=1)
    """Requests of each of the two kinds that may wait, each 16 KiB of a prompt as one; a user has half of the room."""
    seconds: float = Field(default=300.0, gt=0)
    """Longest wait of a request, in seconds."""


class KeyLimitSettings(Section):
    """Default limits of an API key. A key's line in the file may set others. All gateways count together."""

    requests: int | None = Field(default=None, ge=1)
    """Requests a minute; None for no limit."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens a minute, of prompts and outputs together; None for no limit."""
    concurrency: int | None = Field(default=None, ge=1)
    """Requests at once; None for no limit."""


def _check_key(key: SecretStr) -> SecretStr:
    """The key, if it is 64 hexadecimal digits; raises ValueError, which does not repeat it, if not."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", key.get_secret_value()):
        raise ValueError("must be 64 hexadecimal digits")
    return key


class KvSettings(Section):
    """Blocks of keys and values kept outside the verifiers, so that no verifier has to compute them again."""

    redis_url: str = ""
    """Redis for blocks of keys and values, a server of its own with `allkeys-lru` and no persistence; empty is none."""
    key: Annotated[SecretStr, AfterValidator(_check_key)] | None = None
    """64 hexadecimal digits with which blocks are encrypted (AES-256-GCM); as they come from verifiers when None."""
    block_tokens: int = Field(default=64, ge=BLOCK_TOKENS, multiple_of=BLOCK_TOKENS)
    """Tokens of one block, a multiple of 16; blocks of 1 to 8 MiB are moved most efficiently."""
    ttl: float = Field(default=3600.0, gt=0)
    """Seconds a block is kept after its last use."""
    budget_bytes: int = Field(default=2**30, gt=0)
    """Bytes of blocks that one user may have stored, under all salts together."""
    queue: int = Field(default=256, gt=0)
    """Blocks that may wait to be stored before the oldest are dropped."""
    patience: float = Field(default=0.5, gt=0)
    """Seconds a generation waits for its blocks at least; longer where computing them would take over twice as long."""


class ModelRoute(Section):
    """An additional model: its tokenizer and the addresses of its verifiers."""

    path: Path
    """A folder with its tokenizer, as `model.path` is for the first model."""
    verifiers: tuple[Address, ...] = ()
    """Its verifiers, where they are a static list."""
    discovery: GatewayDiscoverySettings = GatewayDiscoverySettings()
    reasoning_parser: ReasoningParser = AUTO
    """Format of its thinking; like `reasoning_parser` of the first model."""
    peer: str = ""
    """The DNS name in the certificates of its verifiers; empty takes `tls.peer`."""

    @model_validator(mode="after")
    def _has_verifiers(self) -> Self:
        if self.discovery.kind == "static" and not self.verifiers:
            raise ValueError("verifiers must not be empty, unless discovery finds them")
        return self


class GatewaySettings(Settings):
    """Settings of the gateway."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_GATEWAY_")

    model: TokenizerSettings
    models: Mapping[str, ModelRoute] = {}
    """More models by the name that callers use; requests that name none are for `model`."""
    generation_config: Literal["auto", "none"] = "auto"
    """Whether the generation_config.json of a model's folder has the sampling of requests that name none."""
    names_as_tokens: bool = False
    """Whether a control token's name, such as `</s>`, in a message or a tool is that token; else it is text."""
    reasoning_parser: ReasoningParser = AUTO
    """Format of the model's thinking: `auto` reads the chat template; otherwise `none`, a format, or a parser of vLLM
    by name."""
    http: Address = "127.0.0.1:8000"
    """The OpenAI-compatible API."""
    address: Address = "127.0.0.1:50051"
    """The gRPC API."""
    cors_origins: Origins = ()
    """Origins of web pages whose scripts may call the HTTP API, as `https://app.example`; `*` is every origin."""
    hosts: HostNames = ()
    """Host names to accept in requests, besides the machine's own, if `http` is on loopback without keys."""
    proxies: HostNames = ()
    """Addresses or networks of proxies, as `10.0.0.0/8`, whose `X-Forwarded-For` names the caller."""
    page: bool = True
    """Whether `http` serves a page at `/` that shows speculation."""
    admin: Address | None = None
    """Address of /metrics and of the details of /readyz, which then leave `http`; they stay on `http` when None."""
    health: Address | None = None
    """A second address for grpc.health.v1 and reflection, which then leaves the first; none when None."""
    otel: OtelSettings = OtelSettings()
    verifiers: tuple[Address, ...] = Field(default=("127.0.0.1:50053",), min_length=1)
    """Addresses of the verifiers, if they are a static list."""
    discovery: GatewayDiscoverySettings = GatewayDiscoverySettings()
    cluster: ClusterSettings = ClusterSettings()
    tls: DialTlsSettings = DialTlsSettings()
    public_tls: PublicTlsSettings = PublicTlsSettings()
    token: Token = NO_TOKEN
    """Token for calls to verifiers; it is no API key."""
    api_keys: Path | None = None
    """File of API keys, a line `tenant: sha256:HEX` for each; reread when it changes. None asks for no key."""
    key_limits: KeyLimitSettings = KeyLimitSettings()
    redis_url: str = "redis://127.0.0.1:6379/0"
    """The session store: `redis://`, `rediss://`, `unix://`, `redis+sentinel://` or `rediss+sentinel://`."""
    redis_prefix: Annotated[str, Field(pattern=r"^[\w.:/-]*$")] = ""
    """Prefix of every key in the session store. Deployments with different prefixes share a server, but no session."""
    mode: Mode = Mode.REJECTION
    """Verification mode of a request that names none."""
    max_tokens_over_room: Literal["clamp", "refuse"] = "clamp"
    """Action for a request with more max_tokens than the context has room for."""
    placement: Literal["prefix", "session"] = "prefix"
    """Key by which a new session is assigned to a verifier: `prefix`, the beginning of its prompt, whose keys and
    values are cached there, or `session`, its id. No verifier gets more than 1.25 times its share of the load."""
    max_body_bytes: int = Field(default=4 * 2**20, gt=0)
    """Largest HTTP body or gRPC message taken from a caller."""
    request_timeout: float = Field(default=600.0, gt=0)
    """Seconds a generation may take when its caller set no deadline."""
    lease: float = Field(default=10.0, gt=0)
    """Seconds after which another gateway may take over a turn whose owner stopped renewing its lease."""
    session_ttl: float = Field(default=3600.0, gt=0)
    """Seconds a session is kept after its last round."""
    store_patience: float = Field(default=30.0, ge=0)
    """Seconds a running generation waits for a session store that does not answer."""
    store_replicas: int = Field(default=0, ge=0)
    """Replicas that must have acknowledged a round before it is shown."""
    grace: float = Field(default=10.0, ge=0)
    """Seconds that a resumable generation continues without a reader before it is stopped."""
    poll: float = Field(default=1.0, gt=0)
    """Seconds between two probes of each verifier."""
    ping: float = Field(default=15.0, gt=0)
    """Seconds of silence on an event stream after which a comment is sent."""
    admission: AdmissionSettings = AdmissionSettings()
    failover: FailoverSettings = FailoverSettings()
    drain: DrainSettings = DrainSettings()
    kv: KvSettings = KvSettings()

    @model_validator(mode="after")
    def _has_distinct_models(self) -> Self:
        if self.model.served_name in self.models:
            raise ValueError(f"models.{self.model.served_name}: this is the name of `model` already")
        if "" in self.models:
            raise ValueError("models: a name must not be empty")
        return self

    @property
    def routes(self) -> dict[str, ModelRoute]:
        """The models by their names, `model` first."""
        first = ModelRoute(
            path=self.model.path,
            verifiers=self.verifiers,
            discovery=self.discovery,
            reasoning_parser=self.reasoning_parser,
        )
        return {self.model.served_name: first, **self.models}

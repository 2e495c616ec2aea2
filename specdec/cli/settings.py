"""The settings of `specdec up`; flags win over SPECDEC_UP_*, which win over the file, which wins over the defaults."""

import os
from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field
from pydantic_settings import SettingsConfigDict

from specdec.rules.params import Mode
from specdec.serving.settings import Address, Settings

_ROOT = Path(__file__).parents[2]
_DEMO = Path("models/demo")


class UpSettings(Settings):
    """Settings of `specdec up`; each is also a flag of the same name."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_UP_")

    http: Address = "127.0.0.1:8000"
    """Address of the first gateway's OpenAI-compatible API."""
    grpc: Address = "127.0.0.1:50051"
    """Address of the first gateway's gRPC API."""
    drafter_address: Address = "127.0.0.1:50052"
    """Address of the first drafter."""
    verifier_address: Address = "127.0.0.1:50053"
    """Address of the first verifier."""
    drafter_metrics: Address = "127.0.0.1:8100"
    """Address of the first drafter's metrics; the default gives way to a free port where it is taken."""
    verifier_metrics: Address = "127.0.0.1:8200"
    """Address of the first verifier's metrics; the default gives way to a free port where it is taken."""
    target: Path = _DEMO / "target"
    """The large model's folder."""
    drafter: Path = _DEMO / "drafter"
    """The small model's folder; for `ngram`, that of a counts file."""
    drafter_kind: Literal["model", "ngram", "prompt_lookup"] = "model"
    """Source of the drafts; `prompt_lookup` needs no folder of its own."""
    model_name: str = ""
    """Name of the model for callers; the folder's name when empty."""
    drafters: int = Field(default=1, ge=0, le=64)
    """Number of drafters; without any, every token comes from plain decoding."""
    verifiers: int = Field(default=1, ge=1, le=64)
    """Number of verifiers."""
    gateways: int = Field(default=1, ge=1, le=64)
    """Number of gateways."""
    redis_url: str = Field(default_factory=lambda: os.environ.get("REDIS_URL", ""))
    """URL of a session store that runs already; when empty, that of REDIS_URL, or else a store is started."""
    data: Path | None = None
    """Folder in which the session store that is started keeps its sessions; when None, they end with the command."""
    kv: bool = True
    """Whether keys and values are kept in a Redis of their own, from which another verifier restores them."""
    kv_memory: ByteSize = Field(default=ByteSize(512 * 2**20), ge=16 * 2**20)
    """Memory of the KV store that is started, in bytes or as in `512MiB`; what was used longest ago makes room."""
    kv_redis_url: str = ""
    """URL of a KV store that runs already, not the session store's server; when empty, one is started."""
    state: Path | None = None
    """File for the list of processes that run, as JSON; none when None."""
    scrape_config: Path | None = None
    """File for a configuration with which Prometheus reads every process; none when None."""
    sample: bool = True
    """Whether to stream one completion when every process is healthy."""
    api_keys: Path | None = None
    """File of API keys that the gateways ask for, a line `tenant: sha256:HEX` for each; None asks nobody."""
    gamma: int | None = Field(default=None, ge=0)
    """Draft length in tokens; None lets the verifier choose."""
    mode: Mode | None = None
    """Verification rule; None is the services' default."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of both models."""
    compile: bool = False
    """Compile both models: faster passes, for a longer start."""
    log_dir: Path | None = None
    """Folder for the processes' logs; when None, one that is removed at the end."""
    restarts: int = Field(default=5, ge=0)
    """How often in a row a process that ended is started again; one that has run for a minute begins anew."""
    start_timeout: float = Field(default=180.0, gt=0)
    """Seconds within which every process must become healthy."""

    @property
    def served_name(self) -> str:
        """The name under which the model is served: of a folder called `target`, its parent's name."""
        folder = find_model(self.target).resolve()
        return self.model_name or (folder.parent.name if folder.name == "target" else folder.name)


def find_model(path: Path) -> Path:
    """The folder, taken from the checkout that this runs from when the path does not exist here."""
    from_checkout = _ROOT / path
    return from_checkout if not path.exists() and from_checkout.exists() else path

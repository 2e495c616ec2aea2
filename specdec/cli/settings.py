"""The settings of `specdec up`; flags win over SPECDEC_UP_*, which win over the file, which wins over the defaults."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specdec.rules.params import Mode
from specdec.serving.settings import Address, Settings

_ROOT = Path(__file__).parents[2]
_DEMO = Path("models/demo")


class UpSettings(Settings):
    """Settings of `specdec up`; each is also a flag of the same name."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_UP_")

    http: Address = "127.0.0.1:8000"
    """The first gateway's OpenAI-compatible API."""
    grpc: Address = "127.0.0.1:50051"
    """The first gateway's gRPC API."""
    drafter_address: Address = "127.0.0.1:50052"
    """The first drafter."""
    verifier_address: Address = "127.0.0.1:50053"
    """The first verifier."""
    target: Path = _DEMO / "target"
    """The large model's folder."""
    drafter: Path = _DEMO / "drafter"
    """The small model's folder; for `ngram`, that of a counts file."""
    drafter_kind: Literal["model", "ngram", "prompt_lookup"] = "model"
    """What drafts; `prompt_lookup` needs no folder of its own."""
    model_name: str = ""
    """What callers call the model; the folder's name when empty."""
    drafters: int = Field(default=1, ge=0, le=64)
    """How many drafters; with none, every token is plain."""
    verifiers: int = Field(default=1, ge=1, le=64)
    """How many verifiers."""
    gateways: int = Field(default=1, ge=1, le=64)
    """How many gateways."""
    redis_url: str = ""
    """A session store that runs already; empty for REDIS_URL, or else one of our own."""
    state: Path | None = None
    """Where to write what runs, as JSON."""
    sample: bool = True
    """Stream one completion once everything is healthy."""
    gamma: int | None = Field(default=None, ge=0)
    """Draft length; None lets the verifier choose."""
    mode: Mode | None = None
    """Verification rule; None is the services' default."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of both models."""
    compile: bool = False
    """Compile both models: faster passes, for a longer start."""
    log_dir: Path | None = None
    """Where the processes' logs go; a folder of our own, gone at the end, when None."""
    start_timeout: float = Field(default=180.0, gt=0)
    """Seconds for everything to become healthy."""

    @property
    def served_name(self) -> str:
        """The name under which the model is served: of a folder called `target`, its parent's name."""
        folder = find_model(self.target).resolve()
        return self.model_name or (folder.parent.name if folder.name == "target" else folder.name)


def find_model(path: Path) -> Path:
    """The folder, taken from the checkout that this runs from when the path does not exist here."""
    from_checkout = _ROOT / path
    return from_checkout if not path.exists() and from_checkout.exists() else path

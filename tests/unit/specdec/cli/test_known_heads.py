"""The draft head of a known model: where it is found, when it is used, and why one of another target is not."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from specdec.cli import known_heads
from specdec.cli.commands.up import Up
from specdec.cli.local import plan
from specdec.cli.local.signals import Stop
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError
from tests.support.tiny_heads import make_tiny_head

SIZES = {"hidden_size": 32, "vocab_size": 320, "num_hidden_layers": 2}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of models with the known one in it; the checkout has no head."""
    folder = tmp_path / "models"
    monkeypatch.setenv("SPECDEC_MODELS", str(folder))
    monkeypatch.setattr(known_heads, "_SHIPPED", tmp_path / "checkout")
    (folder / "smollm2").mkdir(parents=True)
    (folder / "smollm2" / "config.json").write_text(json.dumps(SIZES))
    return folder


def loaded(**given: object) -> UpSettings:
    return UpSettings.load(None, {"target": "smollm2", **given})


@pytest.mark.parametrize("layout", ["speculators", "eagle"])
def test_a_known_model_drafts_by_its_head_after_text_sources(cache: Path, tmp_path: Path, layout: str) -> None:
    head = make_tiny_head(tmp_path / "checkout/smollm2/head", layout)  # type: ignore[arg-type]
    addresses = ("grpc", "http", "verifier_address", "verifier_metrics", "drafter_address", "drafter_metrics")
    settings = loaded(**dict.fromkeys(addresses, "127.0.0.1:0"))
    assert (settings.head, settings.local, settings.drafters) == (head, "suffix,prompt_lookup", 0)
    plan.check_models(settings)
    verifier = next(each for each in plan.services(settings, plan.allot(settings), "") if each.role == "verifier")
    assert (verifier.config["head"], verifier.config["local"]) == (str(head), ["suffix", "prompt_lookup"])
    assert settings.unused_head == ""


@pytest.mark.parametrize(
    "given",
    [{"local": "suffix,prompt_lookup"}, {"drafters": 1}, {"drafter": "smollm2-drafter"}, {"backend": "transformers"}],
)
def test_a_choice_of_sources_leaves_the_head_out(cache: Path, tmp_path: Path, given: dict[str, object]) -> None:
    make_tiny_head(tmp_path / "checkout/smollm2/head")
    assert loaded(**given).head is None


def test_a_chosen_head_wins_and_one_beside_the_model_comes_next(cache: Path, tmp_path: Path) -> None:
    shipped = make_tiny_head(tmp_path / "checkout/smollm2/head")
    assert loaded(local="head").head == shipped
    own = make_tiny_head(cache / "smollm2-head")
    assert loaded().head == own
    assert loaded(head=tmp_path / "other").head == tmp_path / "other"


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"hidden_size": 64}, "made for a target of hidden_size 32, and this target has 64"),
        ({"vocab_size": 512}, "made for a target of vocab_size 320, and this target has 512"),
        ({"num_hidden_layers": 1}, "reads layer 1, and this target has 1 layers"),
    ],
)
def test_a_head_of_another_target_is_named_and_not_used(
    cache: Path, tmp_path: Path, sizes: dict[str, int], why: str
) -> None:
    head = make_tiny_head(tmp_path / "checkout/smollm2/head")
    (cache / "smollm2" / "config.json").write_text(json.dumps(SIZES | sizes))
    settings = loaded()
    assert (settings.head, settings.local) == (None, "suffix,prompt_lookup")
    assert settings.unused_head.startswith(f"the head {head} is not used: ")
    assert why in settings.unused_head
    shown = io.StringIO()
    with pytest.raises(ConfigError, match="--api-keys"):
        Up(Console(width=400, file=shown), loaded(api_keys=tmp_path / "none"), Stop()).run()
    assert f"warning: the head {head} is not used" in shown.getvalue()

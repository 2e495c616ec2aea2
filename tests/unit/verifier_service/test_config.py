"""A verifier's settings: few are required, and each error is reported on one line."""

from pathlib import Path

import pytest

from specdec.errors import ConfigError
from specdec.planning.gamma_policy import AUTO, GammaPolicy, PolicyKind
from specdec.rules.speculation import TreeOptions
from verifier_service.config import VerifierSettings


def load(**values: object) -> VerifierSettings:
    return VerifierSettings.load(None, {"model": {"path": "m"}, **values})


def test_a_model_is_all_that_is_needed() -> None:
    settings = load()
    assert (settings.model.path, settings.drafters, settings.gamma) == (Path("m"), (), "auto")


def test_settings_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "verifier.yaml"
    file.write_text("model: {path: m}\ndrafters: ['a:1', 'b:2']\ngamma: 4\ndrafting: {timeout: 0.5}\n")
    settings = VerifierSettings.load(file)
    assert settings.drafters == ("a:1", "b:2")
    assert (settings.gamma, settings.drafting.timeout) == (4, 0.5)


@pytest.mark.parametrize(
    ("written", "gamma", "policy"),
    [
        ("auto", None, AUTO),
        ("3", 3, AUTO),
        ("egag", None, GammaPolicy(PolicyKind.EGAG)),
        ("optimal", None, GammaPolicy(PolicyKind.OPTIMAL)),
        ('{"policy": "egag", "max": 8, "ema": 0}', None, GammaPolicy(PolicyKind.EGAG, 1, 8, 0.0)),
    ],
)
def test_the_draft_length_is_that_of_a_number_or_a_policy(
    written: str, gamma: int | None, policy: GammaPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_VERIFIER_GAMMA", written)
    assert load().draft_length == (gamma, policy)


def test_trees_and_lenience_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_VERIFIER_TREE", '{"nodes": 8, "width": 2, "depth": 4}')
    monkeypatch.setenv("SPECDEC_VERIFIER_LENIENCE", "0.5")
    settings = load()
    assert settings.tree is not None
    assert (settings.tree.options, settings.lenience) == (TreeOptions(8, 2, 4), 0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": "often"}, "gamma"),
        ({"gamma": -1}, "gamma"),
        ({"gamma": {"policy": "egag", "ema": 1}}, r"gamma.ema must be in \[0, 1\)"),
        ({"gamma": {"policy": "egag", "max": 17}}, "gamma.max must be at most 16"),
        ({"lenience": 0}, "lenience"),
        ({"tree": {"nodes": 65, "width": 2, "depth": 2}}, "tree.nodes"),
        ({"tree": {"nodes": 4, "width": 2, "depth": 2, "drafters": ["a", "a"]}}, "drafters must be different names"),
        ({"tree": {"nodes": 4, "width": 2, "depth": 2}, "backend": "vllm"}, "vllm judges no trees"),
        ({"local": ["head"]}, "local: `head` needs the folder of a head"),
        ({"head": "folder", "backend": "transformers"}, "head: the backend transformers runs no head"),
        ({"drafter_head": "folder", "backend": "vllm"}, "drafter_head: the backend vllm computes no features"),
        ({"drafter_head": "folder", "head": "folder"}, "drafter_head: the head drafts in the verifier"),
        ({"drafters": ["nowhere"]}, "drafters"),
        ({"drafting": {"timeout": 0}}, "drafting.timeout"),
        ({"gama_max": 3}, "did you mean 'gamma_max'"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**values)


def test_a_model_is_needed() -> None:
    with pytest.raises(ConfigError, match="model"):
        VerifierSettings.load(None)

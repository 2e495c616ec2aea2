"""A verifier's settings: few are needed, wrong ones are one line."""

from pathlib import Path

import pytest

from specdec.errors import ConfigError
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
    ("values", "message"),
    [
        ({"gamma": "often"}, "gamma"),
        ({"gamma": -1}, "gamma"),
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

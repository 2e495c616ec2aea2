"""Settings: precedence, and every error on one line."""

from pathlib import Path

import pytest
from pydantic_settings import SettingsConfigDict

from specdec.errors import ConfigError
from specdec.serving import settings
from specdec.serving.addresses import Address
from specdec.serving.settings import ModelSettings, Settings


class Example(Settings):
    model_config = SettingsConfigDict(env_prefix="SPECDEC_EXAMPLE_")

    model: ModelSettings = ModelSettings(path=Path("/models/default"))
    address: Address = "127.0.0.1:1"
    gamma: int = 4


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "example.yaml"
    path.write_text("model: {path: /models/file, dtype: bfloat16}\ngamma: 5\n")
    return path


def test_the_file_overrides_the_default(config: Path) -> None:
    settings = Example.load(config)
    assert (settings.gamma, settings.model.path, settings.address) == (5, Path("/models/file"), "127.0.0.1:1")


def test_the_environment_overrides_the_file_and_keeps_its_neighbours(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_EXAMPLE_GAMMA", "6")
    monkeypatch.setenv("SPECDEC_EXAMPLE_MODEL__NAME", "coder")
    settings = Example.load(config)
    assert (settings.gamma, settings.model.name, settings.model.dtype) == (6, "coder", "bfloat16")


def test_an_override_wins_over_everything(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_EXAMPLE_GAMMA", "6")
    settings = Example.load(config, {"gamma": 7, "model": {"path": "/models/flag"}})
    assert (settings.gamma, settings.model.path, settings.model.dtype) == (7, Path("/models/flag"), "bfloat16")


def test_a_secret_of_the_container_is_a_setting_that_nothing_else_says(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SECRETS", tmp_path)
    (tmp_path / "specdec_example_address").write_text("127.0.0.1:9\n")
    (tmp_path / "specdec_example_gamma").write_text("9\n")
    loaded = Example.load(config)
    assert (loaded.address, loaded.gamma) == ("127.0.0.1:9", 5)
    monkeypatch.setenv("SPECDEC_EXAMPLE_ADDRESS", "127.0.0.1:8")
    assert Example.load(config).address == "127.0.0.1:8"


def test_two_loads_do_not_share_their_files(config: Path) -> None:
    Example.load(config)
    assert Example.load().gamma == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gama: 3", "gama: unknown setting, did you mean 'gamma'?"),
        ("model: {path: /a, dtyp: x}", "model.dtyp: unknown setting, did you mean 'dtype'?"),
        ("address: 99999", "address: must be host:port, got '127.0.0.1:99999'"),
        ("address: nowhere", "address: must be host:port, got 'nowhere'"),
        ("gamma: many", "gamma: Input should be a valid integer"),
        ("[1, 2]", "must hold a mapping, not a list"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Example.load(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file"):
        Example.load(Path("absent.yaml"))


def test_a_setting_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Example.load().gamma = 9


def test_a_model_is_called_by_its_folder_unless_named() -> None:
    assert ModelSettings(path=Path("/models/coder")).served_name == "coder"
    assert ModelSettings(path=Path("/models/coder"), name="big").served_name == "big"


@pytest.mark.parametrize("given", ["8000", 8000])
def test_a_port_alone_is_on_loopback(given: object) -> None:
    assert Example.load(overrides={"address": given}).address == "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SPECDEC_EXAMPLE_ADRESS", ", did you mean SPECDEC_EXAMPLE_ADDRESS?"),
        ("specdec_example_modle__path", ", did you mean SPECDEC_EXAMPLE_MODEL?"),
        ("SPECDEC_EXAMPLE_NOTHING_OF_OURS", ""),
        ("SPECDEC_GATWAY_HTTP", ", did you mean SPECDEC_GATEWAY_HTTP?"),
        ("SPECDEC_ADDRES", ", did you mean SPECDEC_ADDRESS?"),
    ],
)
def test_a_misspelt_variable_stops_the_start(monkeypatch: pytest.MonkeyPatch, name: str, meant: str) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(ConfigError) as caught:
        Example.load()
    assert caught.value.message == f"{name.upper()}: unknown variable{meant}"


@pytest.mark.parametrize(
    "name",
    [
        "SPECDEC_EXAMPLE_ADDRESS",
        "SPECDEC_GATEWAY_ANYTHING",
        "SPECDEC_ADDRESS",
        "SPECDEC_DEBUG",
        "SPECDEC_MINE",
        "SPECDEC_EXAMPLE_SERVICE_HOST",
        "SPECDEC_EXAMPLE_PORT_8000_TCP_ADDR",
    ],
)
def test_other_variables_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "127.0.0.1:1")
    Example.load()

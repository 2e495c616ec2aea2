"""Settings of several models, and the errors in them."""

from pathlib import Path

import pytest

from gateway.config import GatewaySettings
from specdec.errors import ConfigError

FILE = """
model: {path: /models/large, name: large}
tls: {peer: verifiers.ns.svc}
models:
  org/coder:
    path: /models/coder
    discovery: {kind: dns, names: ["coder-verifiers.ns.svc:50053"]}
    peer: coder.ns.svc
  small:
    path: /models/small
    verifiers: ["127.0.0.1:50063"]
"""


def load(folder: Path, text: str) -> GatewaySettings:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return GatewaySettings.load(path)


def test_the_first_model_is_that_of_the_setting_model(tmp_path: Path) -> None:
    routes = load(tmp_path, FILE).routes
    assert list(routes) == ["large", "org/coder", "small"]
    assert routes["large"].verifiers == ("127.0.0.1:50053",)
    assert routes["org/coder"].discovery.names == ("coder-verifiers.ns.svc:50053",)
    assert (routes["org/coder"].peer, routes["small"].peer) == ("coder.ns.svc", "")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("large: {path: /m, verifiers: ['a:1']}", "models.large: this is the name of `model` already"),
        ("'': {path: /m, verifiers: ['a:1']}", "models: a name must not be empty"),
        ("coder: {path: /m}", "models.coder: verifiers must not be empty, unless discovery finds them"),
        ("coder: {verifiers: ['a:1']}", "models.coder.path: Field required"),
        ("coder: {path: /m, verifiers: ['a']}", "models.coder.verifiers.0: must be host:port"),
    ],
)
def test_a_mistake_is_refused_by_its_name(tmp_path: Path, more: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"model: {{path: /models/large}}\nmodels: {{{more}}}\n")
    assert sentence in caught.value.message

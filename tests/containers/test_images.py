"""Contents of the images: packages of both models once, nothing of the build machine, and no privileges."""

import json

import pytest

from images.__main__ import IMAGES
from images.engine import Podman
from images.sizes import grown, stated

MODULES = {
    "gateway": "gateway",
    "drafter": "drafter_service",
    "verifier": "verifier_service",
    "verifier-vllm": "verifier_service",
}
"""Module of each service's image."""
LEFT = """
import os, sys
found = [path for path in ("/etc/pip.conf", "/root/.config/pip", "/dev/pip", "/run/secrets/pip")
         if os.path.exists(path)]
found += ["/opt/" + name for name in os.listdir("/opt")]
sys.exit(str(found) if found else 0)
"""


@pytest.fixture(params=MODULES)
def service(request: pytest.FixtureRequest, podman: Podman) -> str:
    """Return the name of a service's image. The lane of CI has no time to build the one with vLLM."""
    name: str = request.param
    if not podman.has(IMAGES[name].name):
        pytest.skip(f"no image of {name}: `make images` builds it")
    return name


def _layers(podman: Podman, name: str) -> list[str]:
    (found,) = json.loads(podman.ask("image", "inspect", IMAGES[name].name))
    layers: list[str] = found["RootFS"]["Layers"]
    return layers


def _run(podman: Podman, name: str, *command: str) -> int:
    confined = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")
    entry = f"--entrypoint={json.dumps(list(command[:1]))}"
    return podman.run(("podman", "run", "--rm", *confined, entry, IMAGES[name].name, *command[1:]))


def test_no_image_has_grown_by_a_tenth(podman: Podman) -> None:
    built = {name: image.name for name, image in IMAGES.items() if podman.has(image.name)}
    assert grown({name: podman.megabytes(image) for name, image in built.items()}, stated()) == []


def test_the_images_of_both_models_share_all_but_their_own_code(podman: Podman) -> None:
    drafter, verifier = _layers(podman, "drafter"), _layers(podman, "verifier")
    assert len(set(drafter) - set(verifier)) <= 2, "its code and its model"


def test_nothing_of_pip_s_settings_is_left(podman: Podman, service: str) -> None:
    assert _run(podman, service, "python", "-c", LEFT) == 0


def test_a_service_answers_as_the_chart_confines_it(podman: Podman, service: str) -> None:
    assert _run(podman, service, "python", "-m", MODULES[service], "--help") == 0
    (found,) = json.loads(podman.ask("image", "inspect", IMAGES[service].name))
    assert found["Config"]["User"] == "10001:10001"

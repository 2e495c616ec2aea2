"""Contents of the images: packages of both models once, nothing of the build machine, and no privileges."""

import json

import pytest

from images.__main__ import IMAGES
from images.engine import Podman
from images.sizes import grown, stated

SERVICES = ("gateway", "drafter", "verifier")
LEFT = """
import os, sys
found = [path for path in ("/etc/pip.conf", "/root/.config/pip", "/dev/pip", "/run/secrets/pip")
         if os.path.exists(path)]
found += ["/opt/" + name for name in os.listdir("/opt")]
sys.exit(str(found) if found else 0)
"""


def _layers(podman: Podman, name: str) -> list[str]:
    (found,) = json.loads(podman.ask("image", "inspect", IMAGES[name].name))
    layers: list[str] = found["RootFS"]["Layers"]
    return layers


def _run(podman: Podman, name: str, *command: str) -> int:
    confined = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")
    entry = f"--entrypoint={json.dumps(list(command[:1]))}"
    return podman.run(("podman", "run", "--rm", *confined, entry, IMAGES[name].name, *command[1:]))


@pytest.mark.parametrize("name", [*SERVICES, "valkey"])
def test_no_image_has_grown_by_a_tenth(podman: Podman, name: str) -> None:
    assert grown({name: podman.megabytes(IMAGES[name].name)}, stated()) == []


def test_the_images_of_both_models_share_all_but_their_own_code(podman: Podman) -> None:
    drafter, verifier = _layers(podman, "drafter"), _layers(podman, "verifier")
    assert len(set(drafter) - set(verifier)) <= 2, "its code and its model"


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_of_pip_s_settings_is_left(podman: Podman, name: str) -> None:
    assert _run(podman, name, "python", "-c", LEFT) == 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_answers_as_the_chart_confines_it(podman: Podman, name: str) -> None:
    module = "gateway" if name == "gateway" else f"{name}_service"
    assert _run(podman, name, "python", "-m", module, "--help") == 0
    (found,) = json.loads(podman.ask("image", "inspect", IMAGES[name].name))
    assert found["Config"]["User"] == "10001:10001"

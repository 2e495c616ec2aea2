"""Images that the cluster needs, and the command that takes one of them to the nodes or to a registry."""

import shlex

from images.__main__ import IMAGES
from tests.cluster.pods import in_registry

LOADED = tuple(IMAGES[name].name for name in ("gateway", "drafter", "verifier", "valkey"))


def load_command(command: str, image: str, registry: str) -> str:
    """Return the shell command for an image: IMAGE is its name in podman's store, TARGET its name in the registry."""
    target = in_registry(image.removeprefix("docker.io/"), registry)
    return command.replace("IMAGE", shlex.quote(image)).replace("TARGET", shlex.quote(target))

"""Each service starts from its own image's folders: siblings, and for the gateway torch, are not there to import."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not in this image", name=name)

sys.meta_path.insert(0, Absent())
package = importlib.import_module(PACKAGE)
for module in pkgutil.walk_packages(package.__path__, PACKAGE + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.mark.parametrize(
    ("service", "blocked"),
    [
        ("drafter_service", {"redis", "kubernetes", "fastapi", "uvicorn"}),
        ("verifier_service", {"redis", "kubernetes", "fastapi", "uvicorn"}),
        ("gateway", {"torch"}),
    ],
)
def test_a_service_imports_with_only_its_image_on_the_path(service: str, blocked: set[str], tmp_path: Path) -> None:
    for folder in ("protos", "specdec", service):
        (tmp_path / folder).symlink_to(ROOT / folder)
    siblings = {"drafter_service", "verifier_service", "gateway"} - {service}
    code = f"PACKAGE = {service!r}; BLOCKED = {sorted(blocked | siblings)!r}\n{IMPORT_EVERYTHING}"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": "."}
    )
    assert result.returncode == 0, result.stderr

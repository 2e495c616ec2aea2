"""The script of `helm test` passes against a running system. tests/helm/test_release_test.py tests its failures."""

import os
import re
import subprocess
import sys

from tests.e2e.system import ROOT, System

SCRIPT = ROOT / "helm" / "files" / "generate.py"


def test_it_passes_against_a_running_system(system: System) -> None:
    settings = {
        "GATEWAY": system.http,
        "PROMPT": "def main(",
        "MAX_TOKENS": "24",
        "MODELS": '["demo"]',
        "DRAFTS": "required",
    }
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"24 tokens, the same with [1-9]\d* drafted tokens and without", done.stdout)

"""The tests of kernels, graphs and compiled passes, on the device."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.setup import Setup
from benchmarks.machine import ROOT, environment
from benchmarks.reports.results import Figure, Report
from specdec.cli.local import child_process
from specdec.errors import InternalError

_GRAPHS = "tests/unit/specdec/engine/cuda/test_graphs.py"
_ON_DEVICE = (
    "tests/unit/specdec/rules/test_noise_kernel.py",
    "tests/unit/specdec/engine/cuda",
    "tests/integration/engine/test_compiled.py",
    "tests/integration/engine/test_kv_backends_agree.py",
)
_COUNTS = re.compile(r'<testsuite [^>]*?errors="(\d+)" failures="(\d+)" skipped="(\d+)" tests="(\d+)"')


def measure(setup: Setup) -> Iterator[Report]:
    """Count the tests that pass. On a CPU, only the tests of the graphs' bookkeeping run."""
    paths = _ON_DEVICE if setup.device == "cuda" else (_GRAPHS,)
    text = "`pytest " + " ".join(paths) + "`: what runs on the device agrees with what runs on the host."
    if find_spec("pytest") is None:
        yield Report("gpu_tests", f"{text}\n\nNot measured: there is no pytest in this environment.")
        return
    errors, failures, skipped, tests = _run(paths)
    failed = errors + failures
    yield Report(
        "gpu_tests",
        text,
        [
            Figure(
                "tests passed", f"{tests - skipped - failed} of {tests - skipped}", "all", "no" if failed else "yes"
            ),
            Figure("tests skipped", str(skipped)),
        ],
    )


def _run(paths: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers of errors, failures, skipped tests and all tests."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(file), *paths]
        done = subprocess.run(
            child_process.tied(*command), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )
        sys.stderr.write(done.stdout[-4000:])
        found = _COUNTS.search(file.read_text(encoding="utf-8")) if file.exists() else None
    if found is None:
        raise InternalError(f"pytest counted no tests: {done.stderr[-500:]}")
    return tuple(map(int, found.groups()))

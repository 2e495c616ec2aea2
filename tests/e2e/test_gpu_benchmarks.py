"""The benchmarks of a GPU run from end to end on a CPU. The numbers measured there have no meaning."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu.phase import PHASES
from tests.e2e.system import run_module


@pytest.mark.timeout(1200)  # dozens of processes start, each with torch
def test_all_phases_of_a_gpu_run_on_a_cpu_with_a_tiny_shape_and_are_kept(tmp_path: Path) -> None:
    command = ["benchmarks.gpu_all", "--shape", "tiny", "--device", "cpu", "--quick", "--minutes", "90"]
    done = run_module(*command, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "RESULTS.md").read_text()
    for section in (section for phase in PHASES.values() for section in phase.sections):
        (line,) = (tmp_path / "results" / f"{section}.jsonl").read_text().splitlines()
        assert json.loads(line)["figures"] or "Not measured:" in json.loads(line)["text"]
        assert f"## {section}" in page
    again = run_module(*command, "--out", str(tmp_path), "--resume")
    assert (again.returncode, again.stderr) == (0, "")

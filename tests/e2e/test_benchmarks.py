"""The benchmarks run from end to end on tiny models. The numbers measured there have no meaning."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.phase import PHASES
from benchmarks.sections import SECTIONS
from tests.e2e.system import ROOT, environment
from tests.support.tiny_models import make_tiny_model


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1100
    )


@pytest.mark.timeout(1200)  # dozens of processes start, each with torch
def test_every_section_ends_in_a_dated_run_and_a_page(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", seed=1)
    drafter = make_tiny_model(tmp_path / "drafter", seed=1, noise=0.01)
    done = _run(
        "benchmarks", "--quick", "--target", str(target), "--drafter", str(drafter), "--out", str(tmp_path / "out")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results, page = ((tmp_path / "out" / name).read_text() for name in ("RESULTS.md", "performance.md"))
    for section in SECTIONS:
        line = json.loads((tmp_path / "out" / "results" / f"{section}.jsonl").read_text())
        assert line["commit"]
        assert line["figures"]
        assert f"## {section}" in results
        assert all(
            (tmp_path / "out" / "performance" / f"{chart['name']}.png").stat().st_size for chart in line["charts"]
        )
        assert {each["reached"] for each in line["figures"] if each["goal"] == "all"} <= {"yes"}
    assert "figures mean nothing" in page


def test_a_command_of_its_own_keeps_what_others_wrote(tmp_path: Path) -> None:
    (tmp_path / "RESULTS.md").write_text("# Results\n\n## wire\n\nbytes\n")
    done = _run("benchmarks.sessions", "--commits", "80", "--kv-mib", "--tokens", "30", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.startswith("# Results\n\n## wire\n\nbytes\n\n## sessions\n")
    assert json.loads((tmp_path / "results" / "sessions.jsonl").read_text())["tables"]


def test_restored_keys_and_values_are_found_equal_in_a_model_made_for_it(tmp_path: Path) -> None:
    done = _run("benchmarks.kv", "--tokens", "1280", "--repeats", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "results" / "kv.jsonl").read_text().splitlines()
    assert json.loads(line)["figures"][-1]["value"] == "1 of 1"
    assert "| 1280 | 20.0 |" in (tmp_path / "RESULTS.md").read_text()


@pytest.mark.timeout(1200)  # as many processes start
def test_all_phases_of_a_gpu_run_on_a_cpu_with_a_tiny_shape_and_are_kept(tmp_path: Path) -> None:
    command = ["benchmarks.gpu_all", "--shape", "tiny", "--device", "cpu", "--quick", "--minutes", "90"]
    done = _run(*command, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "RESULTS.md").read_text()
    for section in (section for phase in PHASES.values() for section in phase.sections):
        (line,) = (tmp_path / "results" / f"{section}.jsonl").read_text().splitlines()
        assert json.loads(line)["figures"] or "Not measured:" in json.loads(line)["text"]
        assert f"## {section}" in page
    again = _run(*command, "--out", str(tmp_path), "--resume")
    assert (again.returncode, again.stderr) == (0, "")

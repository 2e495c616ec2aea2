"""The benchmarks run from end to end on tiny models. The numbers measured there have no meaning."""

import json
from pathlib import Path

import pytest

from benchmarks.sections import SECTIONS
from tests.e2e.system import run_module
from tests.support.tiny_models import make_tiny_model


@pytest.mark.timeout(1200)  # dozens of processes start, each with torch
def test_every_section_ends_in_a_dated_run_and_a_page(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", seed=1)
    drafter = make_tiny_model(tmp_path / "drafter", seed=1, noise=0.01)
    done = run_module(
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
    done = run_module("benchmarks.sessions", "--commits", "80", "--kv-mib", "--tokens", "30", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.startswith("# Results\n\n## wire\n\nbytes\n\n## sessions\n")
    assert json.loads((tmp_path / "results" / "sessions.jsonl").read_text())["tables"]


def test_restored_keys_and_values_are_found_equal_in_a_model_made_for_it(tmp_path: Path) -> None:
    done = run_module("benchmarks.kv", "--tokens", "1280", "--repeats", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "results" / "kv.jsonl").read_text().splitlines()
    assert json.loads(line)["figures"][-1]["value"] == "1 of 1"
    assert "| 1280 | 20.0 |" in (tmp_path / "RESULTS.md").read_text()

"""The command line: one line and an exit code for each error, JSON output, and no process or file left running."""

import json
import os
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.system import ROOT, SPECDEC, START_SECONDS, System, alive, environment, running_system, wait_until
from tests.support.addresses import free_addresses


def specdec(*arguments: str, timeout: float = START_SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SPECDEC, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout
    )


def refused(result: subprocess.CompletedProcess[str]) -> str:
    """Return the only line on stderr of a command that failed."""
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    return lines[0]


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(specdec("up", "--no-sample", "--http", f"127.0.0.1:{port}"))
    assert str(port) in line


@pytest.mark.parametrize("flag", ["--target", "--drafter"])
def test_a_missing_model_folder_is_one_line(flag: str) -> None:
    http, grpc = free_addresses(2)
    line = refused(specdec("up", "--no-sample", "--http", http, "--grpc", grpc, flag, "no/such/folder"))
    assert "no/such/folder" in line


@pytest.mark.parametrize("text", ["gateways: many", "no_such_setting: 1", "a: ["])
def test_a_broken_config_file_is_one_line(tmp_path: Path, text: str) -> None:
    config = tmp_path / "up.yaml"
    config.write_text(text)
    assert str(config) in refused(specdec("up", "--no-sample", "--config", str(config)))


def test_a_service_with_a_broken_config_file_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "drafter.yaml"
    config.write_text("modle: {path: x}")
    assert "did you mean 'model'" in refused(specdec("serve", "drafter", "--config", str(config)))


def test_run_reports_tokens_and_statistics_as_json(system: System) -> None:
    result = specdec(
        "run",
        "def main(",
        "--address",
        system.grpc,
        "--max-tokens",
        "12",
        "--temperature",
        "0",
        "--seed",
        "1",
        "--json",
    )
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["tokens"]) == 12


def test_run_shows_the_origin_of_tokens_without_colour(system: System) -> None:
    result = specdec("run", "def main(", "--address", system.grpc, "--max-tokens", "12", "--temperature", "0")
    assert result.returncode == 0, result.stderr
    assert "accepted" in result.stdout
    assert "\x1b[3" not in result.stdout


def test_compare_finds_greedy_tokens_identical(system: System) -> None:
    result = specdec(
        "compare", "def main(", "--address", system.grpc, "--max-tokens", "24", "--temperature", "0", "--json"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["identical"] is True


def test_an_unreachable_gateway_is_one_line_and_exit_3() -> None:
    (address,) = free_addresses(1)
    result = specdec("run", "x", "--address", address)
    assert result.returncode == 3
    assert address in refused(result)


def test_every_process_exposes_metrics(system: System) -> None:
    for role in ("gateway", "verifier", "drafter"):
        with urllib.request.urlopen(f"http://{system.one(role)['http']}/metrics", timeout=60) as reply:
            assert b"specdec_" in reply.read()


def test_several_of_each_tier_start_on_ports_of_their_own(tmp_path: Path) -> None:
    with running_system(tmp_path, "--drafters", "2", "--verifiers", "2", "--gateways", "2") as many:
        roles = sorted(entry["role"] for entry in many.state)
        addresses = [entry["grpc"] for entry in many.state if entry["grpc"]]
        for gateway in (entry for entry in many.state if entry["role"] == "gateway"):
            with urllib.request.urlopen(f"http://{gateway['http']}/readyz", timeout=60) as reply:
                assert reply.status == 200
    assert roles == ["drafter"] * 2 + ["gateway"] * 2 + ["redis", "redis-kv"] + ["verifier"] * 2
    assert len(set(addresses)) == len(addresses) == 6


def test_killing_up_leaves_no_process_behind(tmp_path: Path) -> None:
    with running_system(tmp_path, "--drafters", "0") as system:
        system.process.kill()
        wait_until(lambda: not any(alive(pid) for pid in system.pids()))


def test_a_terminated_up_leaves_no_file_behind(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    os.environ["TMPDIR"] = str(scratch)
    try:
        with running_system(tmp_path, "--drafters", "0") as system:
            assert any(scratch.iterdir())
            system.process.send_signal(signal.SIGTERM)
            system.process.wait(timeout=START_SECONDS)
    finally:
        del os.environ["TMPDIR"]
    assert not any(scratch.iterdir())

"""`specdec doctor` checks each service in a process of its own and takes its exit status into account."""

import json
import socket
import sys
from pathlib import Path

import pytest

from specdec.cli.app import status_of
from specdec.cli.commands import doctor
from specdec.cli.exit_codes import ExitCode
from specdec.cli.settings import UpSettings

pytestmark = pytest.mark.integration

Capture = pytest.CaptureFixture[str]
FINE = 'print({"name": "tokenizer", "status": "ok", "detail": "fingerprint " + "ab" * 32, "remedy": ""})'
OTHER = FINE.replace("ab", "cd")
WRONG = 'import sys; sys.stderr.write("error: model.path: no such folder\\n"); sys.exit(2)'
ADDRESSES = ("http", "grpc", "drafter_address", "verifier_address", "drafter_metrics", "verifier_metrics")
BUG = 'raise RuntimeError("boom")'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder whose files are the programs that check them."""
    run = "import json, sys; print = lambda found: sys.stdout.write(json.dumps(found)); exec(open(sys.argv[1]).read())"
    monkeypatch.setattr(doctor, "command_of", lambda role, config, _: (sys.executable, "-c", run, str(config)))
    for role in ("drafter", "verifier", "gateway"):
        (tmp_path / f"{role}.yaml").write_text(FINE)
    return tmp_path


def test_all_is_well(folder: Path, capsys: Capture) -> None:
    assert status_of(["doctor", "--config-dir", str(folder)]) == ExitCode.OK
    assert "3 services, one fingerprint" in capsys.readouterr().out


def test_another_tokenizer_fails(folder: Path, capsys: Capture) -> None:
    (folder / "drafter.yaml").write_text(OTHER)
    assert status_of(["doctor", "--config-dir", str(folder), "--json"]) == ExitCode.FAILED
    found = {check["name"]: check["status"] for check in json.loads(capsys.readouterr().out)}
    assert found["tokenizers agree"] == "fail"


def test_a_wrong_configuration_is_named_with_its_file(folder: Path, capsys: Capture) -> None:
    (folder / "gateway.yaml").write_text(WRONG)
    assert status_of(["doctor", "--gateway-config", str(folder / "gateway.yaml")]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "fail  gateway" in shown
    assert "no such folder" in shown
    assert f"mend {folder / 'gateway.yaml'}" in shown


def test_a_check_that_crashes_fails_with_its_last_line(folder: Path, capsys: Capture) -> None:
    (folder / "verifier.yaml").write_text(BUG)
    assert status_of(["doctor", "--verifier-config", str(folder / "verifier.yaml")]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "RuntimeError: boom" in shown
    assert "Traceback" not in shown


def test_a_taken_default_port_fails_unless_a_healthy_service_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        findings = doctor.examine_defaults(UpSettings(http=taken, target=Path("no/such")))
    status = {finding.name: finding.status for finding in findings}
    assert status["port --http"] == "fail"
    assert {"port --drafter-metrics", "port --verifier-metrics"} <= set(status)
    assert status["models"] == "fail"


def test_the_stores_that_would_be_started_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda subjects: [])
    monkeypatch.delenv("REDIS_URL", raising=False)
    anywhere = dict.fromkeys(ADDRESSES, "127.0.0.1:0")
    started = {check.name: check for check in doctor.examine_defaults(UpSettings(**anywhere))}
    assert "starts" in started["session store"].detail
    assert "512.0MiB" in started["KV store"].detail
    without = {check.name: check for check in doctor.examine_defaults(UpSettings(**anywhere, kv=False))}
    assert "switched off" in without["KV store"].detail
    away = doctor.examine_defaults(UpSettings(**anywhere, kv_redis_url="redis://127.0.0.1:1/0"))
    assert away[-1].status == "fail"
    assert "--kv-redis-url" in away[-1].detail

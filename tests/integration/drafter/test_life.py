"""Life of a drafter process: settings, start, log lines, end and exit status."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from drafter_service.app import drafter, serve
from drafter_service.check import check
from drafter_service.config import DrafterSettings
from specdec.engine import NativeEngine
from specdec.errors import ConfigError, ModelRefused
from tests.integration.drafter.served_drafter import Service
from tests.integration.drafter.verifier_by_hand import PATIENCE

pytestmark = pytest.mark.integration


def _settings(folder: Path, **settings: object) -> DrafterSettings:
    given = {"model": {"path": folder}, "address": "127.0.0.1:0", "kv_bytes": 2**22}
    return DrafterSettings.load(None, given | settings)


def _checked(settings: DrafterSettings) -> tuple[bool, dict[str, dict[str, str]]]:
    written: list[str] = []
    passed = asyncio.run(check(settings, written.append))
    assert all(line.endswith("\n") for line in written)
    return passed, {line["name"]: line for line in map(json.loads, written)}


async def test_it_serves_until_it_is_told_to_stop(folder: Path) -> None:
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(_settings(folder), stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(PATIENCE):
        await serving


async def test_it_is_not_healthy_before_the_model_is_loaded(folder: Path, engine: NativeEngine) -> None:
    async with drafter(_settings(folder)) as running:
        service = Service(running, engine.tokenizer_hash)
        assert not await service.healthy()
        await running.ready()
        assert await service.healthy()


async def test_a_verifier_that_is_early_waits_for_the_model(folder: Path, engine: NativeEngine) -> None:
    async with drafter(_settings(folder)) as running, Service(running, engine.tokenizer_hash).stream() as verifier:
        assert (await verifier.hello()).model == "tiny"


async def test_a_model_that_is_not_there_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="nothing"):
        await serve(_settings(tmp_path / "nothing"), asyncio.Event())


async def test_a_taken_port_ends_it(folder: Path) -> None:
    async with drafter(_settings(folder)) as running:
        with pytest.raises(ConfigError, match=running.address):
            await serve(_settings(folder, address=running.address), asyncio.Event())


def test_check_finds_nothing_wrong(folder: Path, engine: NativeEngine) -> None:
    passed, lines = _checked(_settings(folder))
    assert passed
    assert {line["status"] for line in lines.values()} == {"ok"}
    assert engine.tokenizer_hash in lines["tokenizer"]["detail"]


def test_check_says_what_to_do_about_a_model_that_is_not_there(tmp_path: Path) -> None:
    passed, lines = _checked(_settings(tmp_path / "nothing"))
    assert not passed
    assert lines["model"]["status"] == "fail"
    assert "model.path" in lines["model"]["remedy"]


def test_check_warns_of_a_port_that_is_taken(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        passed, lines = _checked(_settings(folder, address=address))
    assert passed
    assert lines["address"]["status"] == "warn"
    assert address in lines["address"]["detail"]


def test_a_process_serves_and_ends_on_sigterm(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "drafter.yaml"
    config.write_text(f"model: {{path: {folder}}}\naddress: 127.0.0.1:0\n")
    command = [sys.executable, "-m", "drafter_service", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        events = []
        for line in process.stderr:
            events.append(json.loads(line))
            if events[-1]["event"] == "drafter_ready":
                process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert [event["event"] for event in events[:2]] == ["drafter_listening", "drafter_ready"]
    assert {event["service"] for event in events} == {"drafter"}


def test_a_wrong_setting_is_one_line_and_status_2(tmp_path: Path) -> None:
    config = tmp_path / "drafter.yaml"
    config.write_text(f"model: {{path: {tmp_path}}}\naheed: 3\n")
    for arguments in ([], ["check"]):
        command = [sys.executable, "-m", "drafter_service", *arguments, "--config", str(config)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert "did you mean 'ahead'?" in result.stderr

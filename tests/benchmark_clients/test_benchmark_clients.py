"""Third-party benchmarks complete every request and report the same counts of drafts as the gateway's log."""

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import DEMO, ROOT, System, environment, running_system

REQUESTS = 6
SECONDS = 280
COMMANDS = ROOT / "build" / "benchmark-clients" / "bin"
NAMES = ("aiperf", "vllm", "guidellm")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def served(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    if not any(place(name).exists() for name in NAMES):
        pytest.skip("there is no benchmark here: `make benchmark-clients`")
    with running_system(tmp_path_factory.mktemp("system"), "--no-kv", "--gamma", "4", "--log-dir", str(logs)) as system:
        yield system


def place(name: str) -> Path:
    """Return the path of a benchmark's command, which may not exist."""
    return Path(os.environ.get(f"SPECDEC_TEST_{name.upper()}", COMMANDS / name))


def command(name: str) -> str:
    """The command of a benchmark; skips the test where there is none."""
    if not place(name).exists():
        pytest.skip(f"there is no {name} here: `make benchmark-clients`, or SPECDEC_TEST_{name.upper()}")
    return str(place(name))


def run(*arguments: str, folder: Path) -> str:
    """Return the output of a benchmark."""
    kept = {name: value for name, value in environment().items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE")}
    done = subprocess.run(
        arguments, cwd=folder, env=kept | {"NO_PROXY": "127.0.0.1"}, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def drafted_and_accepted(system: System, logs: Path) -> tuple[int, int]:
    """The sums over the generations that the gateway logged; its counters under vLLM's names have the same."""
    lines = (logs / "gateway-1.log").read_text().splitlines()
    ended = [event for event in map(json.loads, lines) if event.get("event") == "generation_ended"]
    sums = sum(each["drafted"] for each in ended), sum(each["accepted"] for each in ended)
    with urllib.request.urlopen(f"{system.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    names = ("num_draft_tokens", "num_accepted_tokens")
    assert sums == tuple(int(float(_found(rf"vllm:spec_decode_{name}_total{{.*}} (\S+)", text))) for name in names)
    return sums


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} is not in:\n{text}"
    return match[1]


def test_aiperf_has_an_acceptance_table_equal_to_the_log(served: System, logs: Path, tmp_path: Path) -> None:
    before = drafted_and_accepted(served, logs)
    asked = ["--model", "demo", "--url", served.http, "--endpoint-type", "completions", "--streaming"]
    asked += ["--tokenizer", str(DEMO / "target"), "--request-count", str(REQUESTS), "--concurrency", "2"]
    asked += ["--isl", "16", "--osl", "16", "--extra-inputs", "temperature:0", "--ui", "none"]
    told = run(command("aiperf"), "profile", *asked, "--artifact-dir", str(tmp_path), folder=tmp_path)
    drafted, accepted = (now - then for now, then in zip(drafted_and_accepted(served, logs), before, strict=True))
    assert float(_found(r"Request Count \(requests\) │\s*([\d.]+)", told)) == REQUESTS
    rate = float(_found(r"Overall Draft Acceptance Rate \(%\) │\s*([\d.]+)", told))
    assert rate == pytest.approx(100 * accepted / drafted, abs=0.01)


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_vllm_bench_serve_has_its_speculative_section(
    served: System, logs: Path, tmp_path: Path, backend: str, endpoint: str
) -> None:
    before = drafted_and_accepted(served, logs)
    asked = ["--backend", backend, "--endpoint", endpoint, "--base-url", served.http, "--model", "demo"]
    asked += ["--tokenizer", str(DEMO / "target"), "--dataset-name", "random", "--random-input-len", "16"]
    asked += ["--random-output-len", "16", "--num-prompts", str(REQUESTS), "--max-concurrency", "2"]
    told = run(command("vllm"), "bench", "serve", *asked, "--temperature", "0", folder=tmp_path)
    drafted, accepted = (now - then for now, then in zip(drafted_and_accepted(served, logs), before, strict=True))
    assert int(_found(r"Successful requests: +(\d+)", told)) == REQUESTS
    section = told[told.index("Speculative Decoding") :]
    # vLLM sends one request to try the server, and reads the counters for the first time after it.
    assert 0 < int(_found(r"Draft tokens: +(\d+)", section)) <= drafted
    assert 0 < int(_found(r"Accepted tokens: +(\d+)", section)) <= accepted


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm_completes_every_request(served: System, tmp_path: Path, endpoint: str) -> None:
    report_file = tmp_path / "report.json"
    asked = ["--backend", f"kind=openai_http,target={served.http},model=demo,request_format={endpoint}"]
    asked += ["--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}"]
    asked += ["--tokenizer", f"kind=hf_auto,model={DEMO / 'target'}", "--disable-console-interactive"]
    asked += ["--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=16"]
    run(command("guidellm"), "run", *asked, "--output", f"kind=json,path={report_file}", folder=tmp_path)
    (report,) = json.loads(report_file.read_text())["benchmarks"]
    totals = report["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (REQUESTS, 0), totals

"""lm-evaluation-harness, unmodified, scores choices and generates text over `local-completions`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.system import DEMO, System
from tests.tool_clients.environment import SECONDS, client_environment, interpreter

CHOICES = """\
task: specdec_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["return 1", "import os", "xq zj vk"]
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""
TEXTS = """\
task: specdec_texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: ""
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
ROWS = [{"question": "def one():\n    ", "answer": 0}, {"question": "import sys\n", "answer": 1}]


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has the harness; skips where there is none."""
    return interpreter("eval-clients")


@pytest.mark.parametrize("tokenized", [True, False])
def test_choices_are_scored_and_texts_generated(python: str, served: System, tmp_path: Path, tokenized: bool) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    for name, text in (("choices", CHOICES), ("texts", TEXTS)):
        (tmp_path / f"{name}.yaml").write_text(text.format(data=data))
    model = (
        f"model=demo,base_url={served.http}/v1/completions,num_concurrent=2,max_retries=1,tokenizer_backend=huggingface"
    )
    command = [python, "-m", "lm_eval", "--model", "local-completions", "--include_path", str(tmp_path)]
    command += ["--model_args", f"{model},tokenizer={DEMO / 'target'},tokenized_requests={tokenized}"]
    command += ["--tasks", "specdec_choices,specdec_texts", "--output_path", str(tmp_path / "out"), "--log_samples"]
    homes = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    environment = client_environment() | homes
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    (report,) = (tmp_path / "out").rglob("results_*.json")
    results: dict[str, Any] = json.loads(report.read_text())["results"]
    assert 0 <= results["specdec_choices"]["acc,none"] <= 1
    (samples,) = (tmp_path / "out").rglob("samples_specdec_choices_*.jsonl")
    for sample in map(json.loads, samples.read_text().splitlines()):
        scores = [float(score) for ((score, _),) in sample["resps"]]
        assert all(score < 0 for score in scores)
        assert min(scores) == scores[2], "what no one writes is the least likely"

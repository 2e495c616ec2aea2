"""The chart rewritten for Kubernetes 1.20, so that an API server of that version takes every object."""

import re
import shutil
from pathlib import Path

import yaml

from tests.helm.cases import CASES
from tests.helm.engine import CHART, Values
from tests.helm.objects import TIERS

_PRE_STOP = (r"sleep: \{seconds: (\d+)\}", r'exec: {command: [sleep, "\1"]}')
_PORT = (r"- \{name: (\w+), port:", r"- {protocol: TCP, name: \1, port:")  # no key defaults in server-side apply
_EDITS = (
    ("Chart.yaml", r"kubeVersion: .*\n", ""),
    ("templates/pdb.yaml", r"policy/v1\n", "policy/v1beta1\n"),
    ("templates/pdb.yaml", r" *unhealthyPodEvictionPolicy: .*\n", ""),
    ("templates/autoscaling.yaml", r"autoscaling/v2\n", "autoscaling/v2beta2\n"),
    ("templates/service.yaml", *_PORT),
    ("templates/service.yaml", r".*\$values.service.loadBalancerClass \}\}\n.*\n.*end \}\}\n", ""),
    ("templates/valkey.yaml", *_PORT),
    ("templates/valkey.yaml", r" *persistentVolumeClaimRetentionPolicy: .*\n", ""),
    ("templates/_pod.tpl", r"grpc: \{port: (.*), service: .*\}", r"tcpSocket: {port: \1}"),
    ("templates/_pod.tpl", r"sleep: \{seconds: \{\{ (\S+) \}\}\}", r"exec: {command: [sleep, {{ \1 | quote }}]}"),
)
"""(file, text, replacement for 1.20); nothing else of the chart changes."""


def older_chart(folder: Path) -> Path:
    """Make a rewritten copy of the chart in `folder`."""
    copy = shutil.copytree(CHART, folder / "chart")
    for name, newer, older in _EDITS:
        text, count = re.subn(newer, older, (copy / name).read_text(encoding="utf-8"))
        assert count, f"{name} no longer says {newer}"
        (copy / name).write_text(text, encoding="utf-8")
    return copy


def older_values(case: str) -> Values:
    """Return the values of a file in ci/, with the same replacements in the parts of pods that they contain.

    Where a Job would make the certificates, the values name Secrets instead: Helm waits for Jobs, and no controller
    runs them.
    """
    loaded: Values = yaml.safe_load(re.sub(*_PRE_STOP, _text(case)))
    return {"tls": {"existingSecrets": {tier: f"{tier}-tls" for tier in TIERS}}, **loaded}


def older_cases() -> list[str]:
    """Return the files in ci/ that 1.20 can express: not those with devices by claim or with volumes of images."""
    return [case for case in CASES if not re.search("claimTemplate|source: oci", _text(case))]


def _text(case: str) -> str:
    return (CHART / "ci" / f"{case}-values.yaml").read_text(encoding="utf-8")

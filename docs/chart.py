"""Writes helm/values.schema.json and the table of helm/README.md, from values.yaml and the settings: `make docs`."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from drafter_service.config import DrafterSettings
from gateway.config import GatewaySettings
from gateway.ratio_controller.config import RatioSettings
from specdec.planning.gamma_policy import POLICIES
from specdec.serving.settings import Settings
from verifier_service.config import VerifierSettings

CHART = Path(__file__).parents[1] / "helm"
TABLE = "<!-- values -->"
TIERS = ("drafter", "verifier", "gateway")
"""Parts of the chart that have many values alike."""

Schema = dict[str, Any]

SERVICES: dict[str, type[Settings]] = {
    "drafter": DrafterSettings,
    "verifier": VerifierSettings,
    "gateway": GatewaySettings,
    "ratioController": RatioSettings,
}
WRITTEN_BY_THE_CHART = {
    *(
        "address",
        "http",
        "health",
        "admin",
        "discovery",
        "cluster",
        "tls",
        "token",
        "drafters",
        "verifiers",
        "models",
        "backend",
    ),
    *(
        "redis_url",
        "redis_prefix",
        "cors_origins",
        "mode",
        "gamma",
        "gamma_max",
        "lenience",
        "tree",
        "drain",
        "drain_seconds",
        "deployment",
        "metrics",
    ),
    "interval",
    *("api_keys", "public_tls", "backend"),
    "ratioController.lease",
    "drafter.local",
}
"""Settings that no `config`, or not that of one component, may hold, for the chart would write over them."""
WRITTEN_IN_SECTIONS = {
    "ModelSettings": {"path", "name"},
    "TokenizerSettings": {"path", "name"},
    "KvSettings": {"redis_url", "key"},
    "ScalingSettings": {"minimum", "maximum", "down_seconds", "min_speedup"},
}
"""Settings that a section of a `config` may not hold."""

DURATION = {"type": "string", "pattern": r"^([0-9]+(h|m|s|ms))+$"}
PORTS = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}}
STRINGS = {"type": "array", "items": {"type": "string"}}
ADDRESSES = {"type": "array", "items": {"type": "string", "pattern": r"^[^\s@/,]+:[0-9]+$"}}
COUNT = {"type": "integer", "minimum": 0}
AT_LEAST_ONE = {"type": "integer", "minimum": 1}
POSITIVE = {"type": "number", "exclusiveMinimum": 0}
SHARE = {"type": "number", "minimum": 0, "maximum": 1}
NAME = {"type": "string", "pattern": r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$", "maxLength": 253}

_REPOSITORY = {"type": "string", "pattern": r"^[\w.-]+/[\w.-]+$"}
_REVISION = {"type": "string", "minLength": 1}
_DOWNLOAD = {
    "type": "object",
    "properties": {"repository": _REPOSITORY, "revision": _REVISION},
    "required": ["repository", "revision"],
    "additionalProperties": False,
}
_MODEL = {
    "type": "object",
    "properties": {
        "addresses": {**ADDRESSES, "minItems": 1},
        "tlsName": {"type": "string"},
        "path": {"type": "string", "minLength": 1},
        "huggingFace": _DOWNLOAD,
    },
    "required": ["addresses"],
    "oneOf": [{"required": ["path"]}, {"required": ["huggingFace"]}],
    "additionalProperties": False,
}
_NAMED = {"type": "object", "properties": {"name": NAME}, "required": ["name"], "additionalProperties": False}

_POLICY = {
    "type": "object",
    "properties": {
        "policy": {"enum": list(POLICIES)},
        "value": COUNT,
        "min": AT_LEAST_ONE,
        "max": AT_LEAST_ONE,
        "ema": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        "min_confidence": SHARE,
    },
    "required": ["policy"],
    "additionalProperties": False,
}
_TREE = {
    "nodes": AT_LEAST_ONE,
    "width": AT_LEAST_ONE,
    "depth": AT_LEAST_ONE,
    "replacement": {"type": "boolean"},
    "drafters": STRINGS,
}

RULES: tuple[tuple[str, Schema], ...] = (
    (r".*\.image\.digest", {"type": "string", "pattern": r"^(sha256:[0-9a-f]{64})?$"}),
    (r".*\.image\.tag", {"type": "string", "pattern": r"^[\w.-]*$", "not": {"const": "latest"}}),
    (r".*\.pullPolicy", {"enum": ["Always", "IfNotPresent", "Never"]}),
    (r".*\.image\.repository", {"type": "string", "minLength": 1}),
    (r".*\.model\.source", {"enum": ["image", "claim", "oci", "huggingFace", "s3"]}),
    (r"verifier\.backend", {"enum": ["native", "vllm", "transformers"]}),
    (r"verifier\.tensorParallelSize", AT_LEAST_ONE),
    (r".*\.cache\.kind", {"enum": ["emptyDir", "claim", "existingClaim"]}),
    (r".*\.huggingFace\.repository", {"type": "string", "pattern": r"^([\w.-]+/[\w.-]+)?$"}),
    (r".*\.s3\.uri", {"type": "string", "pattern": r"^(s3://[^/\s]+(/\S*)?)?$"}),
    (r".*\.s3\.endpoint", {"type": "string", "pattern": r"^(https?://.+)?$"}),
    (r".*\.oci\.reference", {"type": "string", "pattern": r"^\S*$"}),
    (r".*\.huggingFace\.revision", {"type": "string", "minLength": 1}),
    (
        r".*(existingClaim|existingSecret|caSecret|clientSecret|credentialsSecret|tlsSecret|Secret\.name|issuerRef\.name|claimTemplate)",
        NAME,
    ),
    (r".*(nameOverride|fullnameOverride|serviceAccount\.name)", NAME),
    (r"tls\.existingSecrets\.\w+", NAME),
    (r"drafter\.autoscaling\.kind", {"enum": ["none", "hpa", "keda", "ratio"]}),
    (r".*\.autoscaling\.kind", {"enum": ["none", "hpa", "keda"]}),
    (r".*\.pdb\.maxUnavailable", {"anyOf": [COUNT, {"type": "string", "pattern": r"^[0-9]+%$"}]}),
    (r".*\.service\.type", {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}),
    (r".*\.externalTrafficPolicy", {"enum": ["", "Cluster", "Local"]}),
    (r".*\.ipFamilyPolicy", {"enum": ["", "SingleStack", "PreferDualStack", "RequireDualStack"]}),
    (r".*\.ipFamilies", {"type": "array", "items": {"enum": ["IPv4", "IPv6"]}, "maxItems": 2, "uniqueItems": True}),
    (r".*\.nodePorts\.\w+", {**COUNT, "maximum": 65535}),
    (r"global\.imagePullSecrets", {"type": "array", "items": {"anyOf": [{"type": "string"}, _NAMED]}}),
    (r".*\.drain\.preStop", {"enum": ["sleep", "exec"]}),
    (r".*\.keda\.(threshold|kvUsage)", {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}),
    (r".*\.gpu\.resourceName", {"type": "string", "pattern": r"^[a-z0-9.-]+/[a-zA-Z0-9._-]+$"}),
    (
        r".*(gpu\.count|maxReplicas|startupSeconds|downloadSeconds|pollingInterval|failureThreshold|maxTokens"
        r"|selfSigned\.days)",
        AT_LEAST_ONE,
    ),
    (r"(verifier|gateway|ratioController)\.(replicas|interval)", AT_LEAST_ONE),
    (r".*\.(size|tmpSize|maxmemory)", {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?([kKMGT]i?[bB]?|[mg]b)?$"}),
    (r".*accessModes", {**STRINGS, "minItems": 1}),
    (r"gatewayApi\.canary\.service", NAME),
    (r"gatewayApi\.canary\.weight", {**COUNT, "maximum": 100}),
    (r"redis\.keyPrefix", {"type": "string", "pattern": r"^[\w.:/-]*$"}),
    (r"models", {"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": _MODEL}),
    (r"discovery\.kind", {"enum": ["kubernetes", "dns"]}),
    (r".*external\.addresses", ADDRESSES),
    (r"gateway\.corsOrigins", {"type": "array", "items": {"type": "string", "pattern": r"^(\*|https?://[^\s/,]+)$"}}),
    (r"redis\.(kv\.)?external\.url", {"type": "string", "pattern": r"^((rediss?(\+sentinel)?)://.+)?$"}),
    (r"tls\.mode", {"enum": ["auto", "certManager", "existingSecrets", "selfSigned"]}),
    (r"tls\.certManager\.(duration|renewBefore)|metrics\.interval", DURATION),
    (r"networkPolicy\..*Ports", PORTS),
    (
        r".*prometheusAuth\.headers",
        {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[^,=]*$"}},
    ),
    (r".*prometheusAddress", {"type": "string", "pattern": r"^(https?://.+)?$"}),
    (r".*(hostnames|extraHosts|extraArgs|loadBalancerSourceRanges)", STRINGS),
    (r"speculation\.gamma", {"anyOf": [{"enum": ["auto", "optimal", "egag"]}, {**COUNT, "maximum": 16}, _POLICY]}),
    (r"speculation\.lenience", {**POSITIVE, "maximum": 1}),
    (r"speculation\.tree", {"type": "object", "properties": _TREE, "additionalProperties": False}),
    (r"speculation\.gammaMax", {**COUNT, "maximum": 64}),
    (r"speculation\.(local|drafterLocal)", {"type": "array", "items": {"enum": ["ngram", "prompt_lookup", "suffix"]}}),
    (r"speculation\.drafterVocabulary", {"enum": ["same", "translate"]}),
    (r"speculation\.mode", {"enum": ["off", "rejection", "block", "coupled"]}),
    (r"sizing\.alpha|.*minAcceptance", SHARE),
    (r".*objectives\.(available|firstToken)", {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    (r".*objectives\.firstTokenSeconds", {"enum": [0.25, 0.5, 1, 2.5, 5, 10, 30, 60]}),
    (r"sizing\.gamma", {**COUNT, "maximum": 64}),
    (r"sizing\..*|.*(maxFirstTokenSeconds|minSpeedup)", POSITIVE),
    (r"extraObjects", {"type": "array", "items": {"type": ["object", "string"]}}),
)
"""Schema of a value, by the first pattern that matches its whole path; other values have the type of their default."""

DEFAULTS: dict[type, Schema] = {
    bool: {"type": "boolean"},
    int: COUNT,
    float: {"type": "number"},
    str: {"type": "string"},
    list: {"type": "array", "items": {"type": "object"}},
    dict: {"type": "object"},
}

FREE = re.compile(r".*\.(resources|labels)")
"""Maps that are Kubernetes' own, though they have defaults."""


def schema() -> Schema:
    """The whole schema."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    definitions: Schema = {}
    body = _object(values, "", definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the specdec chart",
        **body,
        "$defs": definitions,
    }


def _object(values: Mapping[str, Any], path: str, definitions: Schema) -> Schema:
    properties = {key: _value(value, f"{path}.{key}".lstrip("."), definitions) for key, value in values.items()}
    open_ended = {"additionalProperties": path == "global"}  # an umbrella chart's globals reach us, too
    return {"type": "object", "properties": properties, **open_ended}


def _value(value: Any, path: str, definitions: Schema) -> Schema:
    tier, _, name = path.partition(".")
    if name == "config" and tier in SERVICES:
        return _config(tier, definitions)
    for pattern, rule in RULES:
        if re.fullmatch(pattern, path):
            return rule
    if isinstance(value, dict) and value and not FREE.fullmatch(path):
        return _object(value, path, definitions)
    return DEFAULTS[type(value)]


def _config(component: str, definitions: Schema) -> Schema:
    """The component's own schema, less what the chart writes."""
    full = SERVICES[component].model_json_schema(ref_template="#/$defs/{model}")
    free = [key for key in full["properties"] if not {key, f"{component}.{key}"} & WRITTEN_BY_THE_CHART]
    properties = {key: full["properties"][key] for key in free}
    for name in sorted(_referred(properties, full["$defs"])):
        found = dict(full["$defs"][name])
        if written := WRITTEN_IN_SECTIONS.get(name):
            found["properties"] = {key: it for key, it in found["properties"].items() if key not in written}
            found.pop("required", None)
        if definitions.setdefault(name, found) != found:
            raise ValueError(f"two settings are called {name}")
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _referred(part: Any, known: Schema) -> set[str]:
    names = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(part)))
    return names.union(*(_referred(known[name], known) for name in names)) if names else names


def comments() -> dict[str, tuple[Any, str]]:
    """Path of each value that is no map of values: its default, and the comment above it."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    leaves = dict(_leaves(yaml.safe_load(text), ""))
    found: dict[str, tuple[Any, str]] = {}
    path: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        comment = re.match(r"\s*# ?(.*)", line)
        key = re.match(r"( *)(\w+):", line)
        if comment:
            words.append(comment[1])
        elif key:
            indent = len(key[1])
            path = [*((at, name) for at, name in path if at < indent), (indent, key[2])]
            dotted = ".".join(name for _, name in path)
            if dotted in leaves:
                found[dotted] = leaves[dotted], " ".join(words)
            words = []
        else:
            words = []
    return found


def _leaves(values: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        dotted = f"{path}.{key}".lstrip(".")
        if isinstance(value, dict) and value and not FREE.fullmatch(dotted):
            yield from _leaves(value, dotted)
        else:
            yield dotted, value


def readme(old: str) -> str:
    """The README with a fresh table."""
    before, _, rest = old.partition(TABLE)
    _, _, after = rest.partition(TABLE)
    rows = "\n".join(f"| {names} | {_code(value)} | {_cell(words)} |" for names, value, words in _rows(comments()))
    return f"{before}{TABLE}\n\n| value | default | meaning |\n|---|---|---|\n{rows}\n\n{TABLE}{after}"


def _rows(values: Mapping[str, tuple[Any, str]]) -> Iterator[tuple[str, Any, str]]:
    """Yield names, default and meaning of each row; a value that several tiers have alike is one row."""
    done = set[str]()
    for path, (value, words) in values.items():
        tier, _, name = path.partition(".")
        tiers = [each for each in TIERS if values.get(f"{each}.{name}") == (value, words)] if tier in TIERS else [tier]
        if path not in done:
            done |= {f"{each}.{name}" for each in tiers}
            yield f"`{'`, `'.join(tiers)}`: `{name}`" if len(tiers) > 1 else f"`{path}`", value, words


def _code(default: Any) -> str:
    return "" if default in ("", [], {}) else f"`{_cell(json.dumps(default))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write both."""
    page = CHART / "README.md"
    page.write_text(readme(page.read_text(encoding="utf-8")), encoding="utf-8")
    text = json.dumps(schema(), indent=2, ensure_ascii=False)
    (CHART / "values.schema.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

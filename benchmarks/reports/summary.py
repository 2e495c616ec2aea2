"""docs/performance.md: the figures that a reader decides by, and the goals that were missed."""

from collections.abc import Iterator, Mapping

from benchmarks.reports.markdown import QUICK, table
from benchmarks.reports.results import Line

ORDER = (
    "engine", "stack", "prompt", "concurrency", "capacity", "grid", "grid_stack", "shared_device", "host_path",
    "controllers", "memory", "one_core", "passes", "peers", "pingpong", "rtt", "rules", "sources", "spec", "chat",
    "theory", "trees", "verdicts", "gpu_tests", "gpu", "gpu_host", "gpu_stack", "gpu_vllm", "gpu_processes",
)  # fmt: skip
"""Sections of the benchmark, in the order of the page."""
GPU_SECTIONS = tuple(name for name in ORDER if name.startswith("gpu"))
"""Sections that `make gpu` measures."""

SHOWN = (
    ("one greedy stream", "specdec without drafts", "stack", "stack speculative / stack plain"),
    ("one greedy stream", "transformers, assisted", "stack", "stack speculative / the better, HF assisted"),
    ("greedy, worst of 4 cells", "vLLM, draft model", "peers", "demo: ours, auto / vLLM draft model, worst of 4 cells"),
    ("no drafts, worst of 6 cells", "vLLM without drafts", "peers", "demo: ours, off / vLLM plain, worst of 6 cells"),
    ("the same with SmolLM2-135M", "vLLM without drafts", "peers", "smollm2: ours, off / vLLM plain, worst of 6 cells"),
    ("32 greedy streams", "specdec without drafts", "concurrency", "32 sessions, on / off"),
    ("edits of code, no draft model", "plain decoding", "sources", "edit loop, suffix / plain"),
    ("agents, no draft model", "plain decoding", "sources", "agent loop, suffix / plain"),
    ("clients with a promised speed", "drafter in the engine", "capacity", "clients apart / in turns, γ·t_d/t_v = 1"),
    ("a drafter that is down", "plain decoding", "rtt", "dead drafter, speed / plain"),
    ("engine on a GPU, 8B shape, α = 0.8", "plain decoding", "gpu", "speculation / plain, acceptance forced to 0.8"),
    ("engine on a GPU, 8B shape, α = 0.8", "transformers", "gpu", "speculation / HF, acceptance forced to 0.8"),
)  # fmt: skip
"""Rows of the first table: the load, the peer, and the section and the name of the figure."""

_HEAD = """\
# Performance

Drafts make specdec faster where the drafter is much cheaper than the target and often right. Elsewhere `gamma: auto`,
the default, decodes plainly, at a small cost. Measure your models on your machine before you decide: `specdec
compare` for one prompt, `specdec tune` for several. [Drafting](drafting.md) says which source to use for which load.

![Tokens per second of vLLM, transformers and specdec for one stream](readme/peers.svg)
"""
_WORTH = """\
## What it is worth

Gains are ratios of speeds, or of numbers of clients, measured in turns in one session: the median of the pairs, with
the middle half of them in brackets. Models are the demo pair unless the row names another.
"""
_MISSED = """\
## Where it falls short

Goals that the benchmark missed: the first of each section, and the number of others.
"""
_MORE = """\
[Every section]({results}) has its text, its tables and all earlier runs, written by `make bench`; `make bench
ARGS=stack` measures one section again. [The paper's tables](paper.md) and [exactness](exactness.md) have pages of
their own.
"""


def performance(newest: Mapping[str, Line], results: str) -> str:
    """Return the page of the newest run of every section.

    Args:
        newest: newest run by the name of its section.
        results: path of the page of results, relative to this page.
    """
    parts = [_HEAD]
    if any(line.get("quick") for line in newest.values()):
        parts.append(QUICK)
    if rows := list(_worth(newest, results)):
        parts += [_WORTH, table(("load", "compared with", "gain", "machine", "section"), rows)]
    if rows := list(_missed(newest, results)):
        parts += [_MISSED, table(("what", "goal", "measured", "section"), rows)]
    if left := _not_measured(newest):
        parts.append(left)
    parts.append(_MORE.format(results=results))
    return "\n".join(parts)


def _worth(newest: Mapping[str, Line], results: str) -> Iterator[tuple[str, ...]]:
    for load, peer, section, name in SHOWN:
        for each in newest[section]["figures"] if section in newest else ():
            if each["name"] == name:
                yield load, peer, each["value"], machine(newest[section]), f"[{section}]({results}#{section})"


def _missed(newest: Mapping[str, Line], results: str) -> Iterator[tuple[str, ...]]:
    for section, line in newest.items():
        missed = [each for each in line["figures"] if each["reached"] == "no"]
        for each in missed[:1]:
            others = f", and {len(missed) - 1} more" if missed[1:] else ""
            yield each["name"] + others, each["goal"], each["value"], f"[{section}]({results}#{section})"


def _not_measured(newest: Mapping[str, Line]) -> str:
    """Return a paragraph on sections without a run, and on GPU runs older than others; it may be empty."""
    dates = [newest[name]["date"] for name in GPU_SECTIONS if name in newest]
    others = [line["date"] for name, line in newest.items() if name not in GPU_SECTIONS]
    missing = ", ".join(f"`{name}`" for name in ORDER if name not in newest)
    texts = []
    if dates and others and max(dates) < max(others):
        texts.append(f"GPU figures are not measured since {max(dates)}: `make gpu` needs a GPU.")
    if missing:
        texts.append(f"Not measured yet: {missing}.")
    return " ".join(texts) + "\n" if texts else ""


def machine(line: Line) -> str:
    """Return the processor of a run, short, and its date."""
    gpu = f", {line['gpu']}" if line["gpu"] else ""
    return f"{line['cores']} cores of {line['cpu'].removesuffix(' Processor')}{gpu}, {line['date']}"

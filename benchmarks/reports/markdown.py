"""Markdown that the pages of results share."""

from collections.abc import Sequence
from typing import Any

QUICK = "**Made with `--quick`, which only shows that it runs: the figures mean nothing.**\n"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table."""
    ruled = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in ruled) + "\n"

"""The chart's example values, in its folder ci/."""

from functools import cache

import yaml

from tests.helm.engine import CHART

CASES = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))


@cache
def values_of(case: str) -> dict[str, object]:
    """Return the values of one file in ci/."""
    loaded: dict[str, object] = yaml.safe_load((CHART / "ci" / f"{case}-values.yaml").read_text(encoding="utf-8"))
    return loaded

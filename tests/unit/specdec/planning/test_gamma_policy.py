"""Policies are parsed as callers write them, and errors name their field."""

from typing import Any

import pytest

from specdec.errors import FieldInvalid, GammaTooLarge
from specdec.planning.gamma_policy import AUTO, GammaPolicy, PolicyKind, parse_gamma
from specdec.rules.speculation import Speculation


@pytest.mark.parametrize(
    ("written", "gamma", "policy"),
    [
        (None, None, AUTO),
        ("auto", None, AUTO),
        (4, 4, AUTO),
        ("egag", None, GammaPolicy(PolicyKind.EGAG)),
        ({"policy": "fixed", "value": 3}, 3, AUTO),
        ({"policy": "fixed", "value": 3, "min_confidence": 0.3}, 3, GammaPolicy(min_confidence=0.3)),
        ({"policy": "auto", "max": 6}, None, GammaPolicy(max=6)),
        ({"policy": "optimal", "min_confidence": 1}, None, GammaPolicy(PolicyKind.OPTIMAL, min_confidence=1)),
        ({"policy": "egag", "min": 1, "max": 8, "ema": 0.5}, None, GammaPolicy(PolicyKind.EGAG, 1, 8, 0.5)),
        ({"policy": "egag", "ema": 0}, None, GammaPolicy(PolicyKind.EGAG, ema=0.0)),
    ],
)
def test_what_callers_write(written: Any, gamma: int | None, policy: GammaPolicy) -> None:
    assert parse_gamma(written) == (gamma, policy)


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ("fast", ""),
        (1.5, ""),
        (True, ""),
        ([], ""),
        ({}, ".policy"),
        ({"policy": ["egag"]}, ".policy"),
        ({"policy": "nasd"}, ".policy"),
        ({"policy": "fixed"}, ".value"),
        ({"policy": "auto", "value": 3}, ".value"),
        ({"policy": "auto", "ema": 0.5}, ".ema"),
        ({"policy": "egag", "speed": 1}, ".speed"),
        ({"policy": "egag", "min": 0}, ".min"),
        ({"policy": "egag", "min": 1.0}, ".min"),
        ({"policy": "egag", "min": 4, "max": 3}, ".max"),
        ({"policy": "egag", "ema": -0.1}, ".ema"),
        ({"policy": "egag", "ema": 1}, ".ema"),
        ({"policy": "egag", "ema": True}, ".ema"),
        ({"policy": "egag", "ema": float("nan")}, ".ema"),
        ({"policy": "auto", "min_confidence": 1.1}, ".min_confidence"),
    ],
)
def test_a_mistake_is_told_by_its_field(written: Any, field: str) -> None:
    with pytest.raises(FieldInvalid) as refused:
        parse_gamma(written)
    assert refused.value.param == f"speculation.gamma{field}"


@pytest.mark.parametrize(("policy", "field"), [(GammaPolicy(max=9), "max"), (GammaPolicy(min=9), "min")])
def test_a_policy_keeps_the_limit_of_the_verifier(policy: GammaPolicy, field: str) -> None:
    policy.check_limit(9)
    with pytest.raises(GammaTooLarge) as refused:
        policy.check_limit(8)
    assert refused.value.param == f"speculation.gamma.{field}"


def test_a_length_is_either_fixed_or_chosen() -> None:
    assert Speculation(gamma=3, policy=GammaPolicy(min_confidence=0.5)).gamma == 3
    with pytest.raises(FieldInvalid):
        Speculation(gamma=3, policy=GammaPolicy(PolicyKind.EGAG))

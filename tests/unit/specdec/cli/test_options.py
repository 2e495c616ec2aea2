"""What `--gamma` takes: a number, the name of a policy, or the object that the API takes."""

import pytest

from specdec.cli.options import policy_of
from specdec.client.events import PromptRequest
from specdec.client.messages import request_to_pb
from specdec.rules.gamma_policy import GammaPolicy, PolicyKind
from specdec.wire.params import GAMMA_POLICY


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("auto", None),
        ("4", 4),
        ("egag", GammaPolicy(PolicyKind.EGAG)),
        ('{"policy": "egag", "max": 8}', GammaPolicy(PolicyKind.EGAG, max=8)),
        ('{"policy": "auto", "min_confidence": 0.4}', GammaPolicy(min_confidence=0.4)),
    ],
)
def test_a_length_or_what_chooses_it(text: str, chosen: int | GammaPolicy | None) -> None:
    assert policy_of(text) == chosen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "speculation.gamma must be"),
        ("", "speculation.gamma must be"),
        ("4x", "Extra data"),
        ('{"policy": "egag", "ema": 2}', "speculation.gamma.ema"),
        ('{"policy": "fixed", "value": 2, "min_confidence": 0.4}', "min_confidence"),
    ],
)
def test_what_is_neither_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        policy_of(text)


def test_a_policy_travels_beside_the_length() -> None:
    policy = GammaPolicy(PolicyKind.EGAG, 2, 8, 0.25, 0.1)
    asked = request_to_pb(PromptRequest("x", gamma=policy)).speculation
    assert not asked.HasField("gamma")
    assert GAMMA_POLICY.from_pb(asked.policy) == policy
    assert request_to_pb(PromptRequest("x", gamma=3)).speculation.gamma == 3

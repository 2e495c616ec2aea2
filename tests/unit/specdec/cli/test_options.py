"""Values of `--gamma` and `--tree`: a number, the name of a policy, or the API's object."""

import pytest

from specdec.cli.options import policy_of, tree_of
from specdec.client.events import PromptRequest
from specdec.client.request_message import request_to_pb
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.speculation import TreeOptions
from specdec.wire.params import GAMMA_POLICY, TREE


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


def test_a_tree_travels_with_all_its_fields() -> None:
    tree = tree_of('{"nodes": 8, "width": 2, "depth": 4, "replacement": true, "drafters": ["a", "b"]}')
    assert tree == TreeOptions(8, 2, 4, True, ("a", "b"))
    asked = request_to_pb(PromptRequest("x", drafter="a", tree=tree)).speculation
    assert (asked.drafter, TREE.from_pb(asked.tree)) == ("a", tree)
    plain = request_to_pb(PromptRequest("x")).speculation
    assert not plain.drafter
    assert not plain.HasField("tree")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"nodes": 65, "width": 2, "depth": 4}', "speculation.tree.nodes"),
        ('{"nodes": 8, "width": 2}', "must be an object"),
        ('{"nodes": "8", "width": 2, "depth": 4}', "must be an object"),
        ('{"nodes": 8, "width": 2, "depth": 4, "high": 1}', "must be an object"),
        ("[8]", "must be an object"),
        ("8x2", "Extra data"),
    ],
)
def test_what_is_no_tree_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tree_of(text)

"""A session keeps the features of its last tokens, so that another drafter can begin with them."""

import torch

from specdec.wire.features import Features
from verifier_service.drafts.feature_window import FeatureWindow

STATES = torch.arange(40.0).view(20, 2)
ROW = 8


def features(start: int, end: int) -> Features:
    return Features.of(start, STATES[start:end])


def test_each_feature_is_sent_once() -> None:
    window = FeatureWindow()
    assert window.unsent() is None
    window.add(features(0, 4))
    assert window.unsent() == features(0, 4)
    assert window.unsent() is None
    window.add(features(4, 6))
    window.add(features(6, 7))
    assert window.unsent() == features(4, 7)
    assert window.all() == features(0, 7)
    assert window.end == 7


def test_tokens_that_are_computed_again_have_their_features_already() -> None:
    window = FeatureWindow()
    window.add(features(0, 5))
    assert window.unsent() == features(0, 5)
    window.add(features(2, 4))
    window.add(features(0, 8))
    assert window.unsent() == features(5, 8)


def test_nothing_is_kept_before_a_gap() -> None:
    window = FeatureWindow()
    window.add(features(0, 3))
    window.add(features(5, 7))
    assert window.unsent() == features(5, 7)
    assert window.all() == features(5, 7)


def test_the_last_ones_stay_within_the_bound() -> None:
    window = FeatureWindow(4 * ROW)
    window.add(features(0, 3))
    for position in range(3, 12):
        window.add(features(position, position + 1))
    assert window.unsent() == features(8, 12)
    assert len(window._parts) == 4
    window.add(features(12, 20))
    assert window.unsent() == features(16, 20)

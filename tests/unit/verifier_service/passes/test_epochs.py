"""The highest epoch owns a session. Among equal epochs, the latest call does."""

import pytest

from specdec.errors import Fenced
from verifier_service.passes.generations import Epochs


def test_an_older_epoch_is_fenced() -> None:
    epochs = Epochs()
    epochs.enter("s", 5)
    with pytest.raises(Fenced):
        epochs.enter("s", 4)
    epochs.enter("other", 1)
    epochs.enter("s", 5)


def test_only_so_many_epochs_are_remembered() -> None:
    epochs = Epochs(remembered=2)
    for name in ("a", "b", "c"):
        epochs.enter(name, 5)
    epochs.enter("a", 1)
    with pytest.raises(Fenced):
        epochs.enter("c", 1)


def test_an_epoch_far_in_the_future_soon_keeps_nobody_out() -> None:
    now = 1_800_000_000.0
    epochs = Epochs(clock=lambda: now)
    epochs.enter("s", 2**63)
    epochs.enter("s", round((now + 61) * 1e6))
    with pytest.raises(Fenced):
        epochs.enter("s", round(now * 1e6))


def test_epochs_of_a_store_whose_clock_is_ahead_are_served() -> None:
    epochs = Epochs(clock=lambda: 1_800_000_000.0)
    ahead = round((1_800_000_000.0 + 3600) * 1e6)
    epochs.enter("s", ahead)
    epochs.enter("s", ahead + 1)

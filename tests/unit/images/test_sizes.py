"""Images that have grown by a tenth, or have no stated size, are reported by name."""

from pathlib import Path

import pytest

from images.__main__ import IMAGES
from images.sizes import grown, state, stated


@pytest.mark.parametrize(("size", "sentences"), [(1000, 0), (1100, 0), (1101, 1), (500, 0)])
def test_a_tenth_more_is_too_much(size: int, sentences: int) -> None:
    assert len(grown({"gateway": size}, {"gateway": 1000})) == sentences


def test_the_sentence_says_how_much() -> None:
    assert grown({"gateway": 1200}, {"gateway": 1000}) == [
        "gateway: 1200 MB, 20% more than the 1000 MB of sizes.json: --state accepts it"
    ]
    assert "states none" in grown({"gateway": 1200}, {})[0]


def test_what_is_measured_replaces_what_is_stated(tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    file.write_text('{"drafter": 5, "gateway": 6}\n')
    state({"gateway": 7}, file)
    assert stated(file) == {"drafter": 5, "gateway": 7}


def test_a_size_is_stated_of_every_image() -> None:
    assert stated().keys() == IMAGES.keys()

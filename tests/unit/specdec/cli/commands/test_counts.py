"""`specdec counts` turns a text into the file of a drafter of kind `counts`."""

from pathlib import Path

import pytest

from specdec.cli.commands import counts
from specdec.errors import ConfigError
from specdec.sources.counts import COUNTS_FILE, load_counts
from tests.support.tiny_models import make_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    make_tokenizer(8).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_all_files_of_a_folder_are_counted(tmp_path: Path, tokenizer: Path) -> None:
    loaded = make_tokenizer(8)
    text = loaded.decode([1, 2, 1, 2, 3])
    corpus = tmp_path / "corpus" / "below"
    corpus.mkdir(parents=True)
    (corpus / "a.txt").write_text(text)
    (corpus.parent / "b.txt").write_text(text)
    expected = 2 * len(loaded.encode(text, add_special_tokens=False))
    assert counts.write(corpus.parent, tokenizer, tmp_path / "out", order=2) == expected
    read = load_counts(tmp_path / "out" / COUNTS_FILE)
    assert (int(read.single.sum()), read.order) == (expected, 2)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\xff"])
def test_what_is_no_text_is_refused_by_name(tmp_path: Path, tokenizer: Path, content: bytes) -> None:
    (tmp_path / "corpus.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"corpus\.txt"):
        counts.write(tmp_path / "corpus.txt", tokenizer, tmp_path / "out", order=2)
    with pytest.raises(ConfigError, match="missing"):
        counts.write(tmp_path / "missing", tokenizer, tmp_path / "out", order=2)

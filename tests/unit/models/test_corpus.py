"""The corpus split: included files, skipped files, and held-out files that never reach training."""

from pathlib import Path, PurePosixPath

import pytest

from models.train.corpus import is_held_out, is_source, read_corpus


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for index in range(200):
        (tmp_path / f"module_{index:03}.py").write_text(f"x = {index}\n")
    for folder in ("test", "package/tests", "site-packages", "encodings"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "skipped.py").write_text("x = 1\n")
    (tmp_path / "empty.py").write_text("\n")
    return tmp_path


def test_every_source_file_is_on_exactly_one_side_of_the_split(library: Path) -> None:
    corpus = read_corpus(library, seed=0, share=0.2)
    train, held_out = ({d.path for d in side} for side in (corpus.train, corpus.held_out))
    assert not train & held_out
    assert train | held_out == {f"module_{index:03}.py" for index in range(200)}
    assert 20 <= len(held_out) <= 60


def test_the_split_depends_on_the_seed_and_on_nothing_else(library: Path) -> None:
    assert read_corpus(library, seed=3) == read_corpus(library, seed=3)
    assert read_corpus(library, seed=3).held_out != read_corpus(library, seed=4).held_out


def test_a_file_keeps_its_side_when_other_files_come_and_go(library: Path) -> None:
    before = {d.path for d in read_corpus(library, seed=0, share=0.2).held_out}
    (library / "module_000.py").unlink()
    (library / "another.py").write_text("x = 1\n")
    after = {d.path for d in read_corpus(library, seed=0, share=0.2).held_out}
    assert before - {"module_000.py"} == after - {"another.py"}


def test_documents_come_in_the_order_of_their_paths(library: Path) -> None:
    paths = [d.path for d in read_corpus(library, seed=0).train]
    assert paths == sorted(paths)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("json/decoder.py", True),
        ("test/test_json.py", False),
        ("idlelib/idle_test/mock_tk.py", False),
        ("lib2to3/tests/support.py", False),
        ("site-packages/pip/main.py", False),
        ("_sysconfigdata__linux_x86_64-linux-gnu.py", False),
        ("config-3.11-x86_64-linux-gnu/python-config.py", False),
        ("contextlib.py", True),
        ("testing.py", True),
    ],
)
def test_tests_foreign_code_and_generated_tables_are_no_source(path: str, expected: bool) -> None:
    assert is_source(PurePosixPath(path)) is expected


def test_the_held_out_share_is_the_share_asked_for() -> None:
    chosen = sum(is_held_out(f"file{index}.py", seed=0, share=0.05) for index in range(10_000))
    assert 400 <= chosen <= 600

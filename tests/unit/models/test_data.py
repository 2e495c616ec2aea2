"""Tokens of each training step."""

import pytest
import torch

from models.train.corpus import Document
from models.train.data import Windows, encode
from models.train.tokenizer import train_tokenizer

ROW = torch.arange(1000)


def test_a_batch_is_a_function_of_seed_and_step_alone() -> None:
    walked = Windows(ROW, length=16, seed=1)
    for step in range(20):
        walked.batch(step, 4)
    assert torch.equal(walked.batch(20, 4), Windows(ROW, length=16, seed=1).batch(20, 4))
    assert not torch.equal(Windows(ROW, 16, seed=1).batch(20, 4), Windows(ROW, 16, seed=2).batch(20, 4))


def test_a_window_is_consecutive_text_with_one_token_more_than_its_length() -> None:
    batch = Windows(ROW, length=16, seed=0).batch(3, 4)
    assert batch.shape == (4, 17)
    assert torch.equal(batch - batch[:, :1], torch.arange(17).expand(4, 17))


def test_an_epoch_predicts_every_token_at_most_once_and_almost_all_of_them() -> None:
    windows = Windows(ROW, length=16, seed=0)
    labels = windows.batch(0, windows.per_epoch)[:, 1:].flatten()
    assert len(labels.unique()) == len(labels) == windows.per_epoch * 16
    assert len(labels) >= len(ROW) - 1 - 2 * 16


def test_epochs_are_cut_and_ordered_differently() -> None:
    windows = Windows(ROW, length=16, seed=0)
    first, second = (windows.batch(epoch, windows.per_epoch)[:, 0] for epoch in (0, 1))
    assert not torch.equal(first, second)
    assert not torch.equal(first.sort().values, second.sort().values)


def test_a_row_shorter_than_two_windows_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        Windows(torch.arange(32), length=16, seed=0)


def test_every_document_opens_with_the_end_of_text_token() -> None:
    texts = ["a = 1\n", "b = 2\n"]
    tokenizer = train_tokenizer(texts, context=64, vocabulary=300)
    ids = encode([Document("a.py", texts[0]), Document("b.py", texts[1])], tokenizer).tolist()
    assert ids[0] == 0
    assert ids.count(0) == 2
    assert tokenizer.decode(ids) == "<|endoftext|>a = 1\n<|endoftext|>b = 2\n"

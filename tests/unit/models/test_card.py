"""The model card contains every measured number."""

from pathlib import Path

from models.train.card import Completion, Facts, render, write_card
from models.train.evaluate import HeldOutLoss
from specdec.training.step_cost import StepCost

FACTS = Facts(
    documents=569,
    train_tokens=1_000_000,
    held_out=("abc.py", "typing.py"),
    target="Llama T",
    drafter="Llama D",
    target_steps=1234,
    target_tokens=2_500_000,
    drafter_steps=(321, 45, 6),
    drafter_tokens=654_000,
    seed=9,
    device="CPU",
    loss=HeldOutLoss(2.3456, 1.2345),
    alpha_sampled=0.8125,
    alpha_greedy=0.7654,
    cost=StepCost(target_ms=5.0, drafter_ms=0.6),
    completions=(Completion("def f(", "def f(x):\n    return x", 0.5),),
)


def test_every_measured_number_is_on_the_card() -> None:
    text = render(FACTS)
    for fact in (
        "2.346 nats/token",
        "1.234 bits/byte",
        "| 0.812 |",
        "| 0.765 |",
        "| 0.120 |",
        "1,234 steps",
        "2.5 epochs",
    ):
        assert fact in text
    assert "--seed 9 --steps 1234" in text
    assert "--drafter-steps 321 --refine-steps 45 --polish-steps 6" in text
    assert "def f(x):\n    return x" in text


def test_the_held_out_files_are_counted_on_the_card_and_listed(tmp_path: Path) -> None:
    write_card(FACTS, tmp_path)
    assert "the 2 files" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "held_out.txt").read_text() == "abc.py\ntyping.py\n"

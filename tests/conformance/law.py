"""The law that outputs must have, from plain forwards of transformers and a restatement of the sampling rules."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.params import SamplingParams
from tests.conformance.sampled import g_test
from tests.conformance.tables import Context, reference

OFTEN = 10
"""Outputs that a cell of the G-test is expected to hold at least."""

Law = dict[Context, float]
"""The chance of every whole output."""


class PlainModel:
    """A model folder as transformers runs it: one forward over whole sequences, no cache, float64."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    def law(self, params: SamplingParams, prompt: Context, length: int, end: int) -> Law:
        """Of outputs that end with `end` or after `length` tokens."""
        law: Law = {}
        running: Law = {(): 1.0}
        for _ in range(length):
            finished = {output: chance for output, chance in law.items() if output[-1] == end}
            law = finished | self._longer(running, params, prompt)
            running = {output: chance for output, chance in law.items() if output[-1] != end}
        return law

    def logits(self, sequences: Sequence[Context]) -> Tensor:
        """After the last token of each; they are of one length. float64 [N, V]."""
        with torch.no_grad():
            logits: Tensor = self._model(torch.tensor(sequences)).logits[:, -1]
        return logits

    def _longer(self, running: Law, params: SamplingParams, prompt: Context) -> Law:
        rows = self.logits([prompt + output for output in running])
        chances = [reference(row, params, prompt, output) for row, output in zip(rows, running, strict=True)]
        return {
            (*output, token): chance * probability
            for (output, chance), row in zip(running.items(), chances, strict=True)
            for token, probability in enumerate(row)
        }


def p_value(outputs: Sequence[Context], law: Law) -> float:
    """Of a G-test of the outputs against the law; 0 when one of them cannot be."""
    cell_of = _cells(law, len(outputs))
    numbers = {cell: number for number, cell in enumerate(dict.fromkeys(cell_of.values()))}
    chances = torch.zeros(len(numbers) + 1, dtype=torch.float64)
    for output, cell in cell_of.items():
        chances[numbers[cell]] += law[output]
    seen = [(numbers[cell_of[output]] if output in cell_of else len(numbers),) for output in outputs]
    return g_test(seen, chances, len(chances))


def _cells(law: Law, outputs: int) -> dict[Context, Context]:
    """The cell of each possible output: itself, or as much of its beginning as is expected often enough."""
    cell_of = {output: output for output, chance in law.items() if chance > 0}
    for length in range(max(map(len, law)), 0, -1):
        expected: dict[Context, float] = defaultdict(float)
        for output, cell in cell_of.items():
            expected[cell] += law[output] * outputs
        for output, cell in cell_of.items():
            if len(cell) == length and expected[cell] < OFTEN:
                cell_of[output] = cell[:-1]
    return cell_of

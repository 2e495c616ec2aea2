"""The law that outputs must have, from plain forward passes of transformers and the restated sampling rules."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.sampling.params import SamplingParams
from tests.conformance.g_test import Law
from tests.conformance.table_models import Context, reference


class PlainModel:
    """A model folder run by transformers: one forward pass over whole sequences, without cache, in float64."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()

    def law(self, params: SamplingParams, prompt: Context, length: int, end: int) -> Law:
        """Return the law of outputs that end with `end` or after `length` tokens."""
        law: Law = {}
        running: Law = {(): 1.0}
        for _ in range(length):
            finished = {output: chance for output, chance in law.items() if output[-1] == end}
            law = finished | self._longer(running, params, prompt)
            running = {output: chance for output, chance in law.items() if output[-1] != end}
        return law

    def logits(self, sequences: Sequence[Context]) -> Tensor:
        """Return the logits after the last token of each of N sequences of one length, float64 [N, V]."""
        with torch.no_grad():
            logits: Tensor = self._model(torch.tensor(sequences)).logits[:, -1]
        return logits

    def rows(self, params: SamplingParams, prompt: Context, outputs: Sequence[Context]) -> list[list[float]]:
        """Return the distribution after each of several outputs of one length."""
        logits = self.logits([prompt + output for output in outputs])
        return [reference(row, params, prompt, output) for row, output in zip(logits, outputs, strict=True)]

    def _longer(self, running: Law, params: SamplingParams, prompt: Context) -> Law:
        chances = self.rows(params, prompt, list(running))
        return {
            (*output, token): chance * probability
            for (output, chance), row in zip(running.items(), chances, strict=True)
            for token, probability in enumerate(row)
        }

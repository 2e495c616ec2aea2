"""The peer: `generate()` of transformers on the same folder, plain or with an assistant model; batch 1, greedy."""

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from benchmarks.run import Ask, Run


class HuggingFace:
    """One model, or a model and its assistant."""

    def __init__(self, target: Path, assistant: Path | None = None, constant: int | None = None) -> None:
        """Load.

        Args:
            target: model folder.
            assistant: the drafter's folder; None for plain decoding.
            constant: draft length; None leaves the assistant's defaults, its adaptive threshold among them.
        """
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._model = _load(target)
        self._options: dict[str, Any] = {}
        if assistant is not None:
            self._options["assistant_model"] = _load(assistant)
        if assistant is not None and constant is not None:
            chosen = self._options["assistant_model"].generation_config
            chosen.num_assistant_tokens = constant
            chosen.num_assistant_tokens_schedule = "constant"
            chosen.assistant_confidence_threshold = 0.0

    def generate(self, ask: Ask) -> Run:
        """Generate greedily."""
        prompt = torch.tensor([ask.prompt])
        started = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=ask.tokens,
                do_sample=False,
                **self._options,
            )
        seconds = time.perf_counter() - started
        return Run(tuple(output[0, len(ask.prompt) :].tolist()), seconds)


def _load(path: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
    model.generation_config.eos_token_id = None  # the same number of tokens from every peer
    return model

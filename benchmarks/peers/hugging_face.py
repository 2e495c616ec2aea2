"""The peer `generate()` of transformers on the same folder: plain, with an assistant model, or with prompt lookup."""

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from benchmarks.run import Ask, Run, gaps_of

_LOOKED_UP = 10
"""Tokens of a draft by prompt lookup if an ask has no γ."""


class HuggingFace:
    """A model and its assistants, with batch size 1. An ask without a γ uses an assistant at its defaults."""

    def __init__(self, target: Path, drafter: Path | None) -> None:
        """Load the models. Without a drafter, the drafts of an ask come from prompt lookup."""
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.seed()  # compared processes must not draw the same numbers
        self._model = _load(target)
        self._drafter = drafter
        self._assistants = dict[int | None, Any]()

    def generate(self, ask: Ask) -> Run:
        """Generate at the ask's temperature, without a seed."""
        sampling = {"temperature": ask.temperature, "top_k": 0, "top_p": 1.0} if ask.temperature else {}
        prompt, clock = torch.tensor([ask.prompt]), Clock()
        with torch.inference_mode():
            output = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=ask.tokens,
                do_sample=ask.temperature > 0,
                streamer=clock,
                **sampling,
                **self._assistance(ask.gamma),
            )
        return clock.run(tuple(output[0, len(ask.prompt) :].tolist()))

    def _assistance(self, gamma: int | None) -> dict[str, Any]:
        """Return options for one draft length. Each length has its own model, which stores what the defaults adapt."""
        if gamma == 0:
            return {}
        if self._drafter is None:
            return {"prompt_lookup_num_tokens": gamma or _LOOKED_UP}
        if gamma not in self._assistants:
            self._assistants[gamma] = _load(self._drafter)
            if gamma is not None:
                chosen = self._assistants[gamma].generation_config
                chosen.num_assistant_tokens = gamma
                chosen.num_assistant_tokens_schedule = "constant"
                chosen.assistant_confidence_threshold = 0.0
        return {"assistant_model": self._assistants[gamma]}


class Clock(BaseStreamer):  # type: ignore[misc]
    """Records arrival times of tokens. The first call receives the prompt."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._times = list[float]()
        self._counts = list[int]()

    def put(self, value: torch.Tensor) -> None:
        """Record the tokens of a round."""
        self._times.append(time.perf_counter())
        self._counts.append(value.numel())

    def end(self) -> None:
        """Do nothing: no token is held back."""

    def run(self, tokens: tuple[int, ...]) -> Run:
        """Return the run after the generation has ended."""
        times = self._times[1:]
        return Run(
            tokens,
            time.perf_counter() - self._started,
            times[0] - self._started,
            self._counts[1],
            len(times),
            gaps=gaps_of(times),
        )


def _load(path: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
    model.generation_config.eos_token_id = None  # the same number of tokens from every peer
    return model

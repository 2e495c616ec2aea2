"""A causal language model of transformers, reduced to the two calls the engine makes of it."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specdec.engine.attention import NAME


class CausalModel(Protocol):
    """What is used of a `transformers` model."""

    config: Any
    base_model: nn.Module
    """All but the last product, which makes the logits."""

    def __call__(self, **inputs: Any) -> Any: ...

    def set_attn_implementation(self, name: str) -> None: ...


class Decoder:
    """Ids in, logits over the valid ids out; attention goes to whatever step the caller has set."""

    def __init__(self, model: CausalModel, vocab_size: int, device: torch.device) -> None:
        self._model = model
        self.vocab_size = vocab_size
        self.device = device
        model.set_attn_implementation(NAME)

    def compile(self) -> None:
        """Have PyTorch compile the model when it next runs, once for one token and once for any other number."""
        # By itself the code would ask for the number of threads again and again, and for a team of one.
        self._model.base_model.compile(dynamic=True, options={"cpp.threads": torch.get_num_threads()})

    @property
    def config(self) -> Any:
        """The model's text configuration."""
        return self._model.config.get_text_config(decoder=True)

    def logits(self, tokens: Sequence[int], positions: Sequence[int], keep: Sequence[int]) -> Tensor:
        """Logits of the tokens `keep` of one packed row, float32 [len(keep), vocab_size], a copy the caller owns."""
        rows = self.run(self._ids(tokens), self._ids(positions), self._rows(len(tokens), keep))
        # Copied outside inference mode: in there it would be a tensor that nobody may write to later.
        return rows.to(torch.float32, copy=True)

    def run(self, ids: Tensor, positions: Tensor, keep: Tensor | int) -> Tensor:
        """One pass over a packed row that can be captured: nothing of it is read back to the host.

        Args:
            ids: [1, T].
            positions: [1, T].
            keep: indices of the tokens that need logits, or how many of the last do; 0 is all.

        Returns:
            [rows, vocab_size], the model's own tensor in its own type.
        """
        with torch.inference_mode():
            row: Tensor = self._model(
                input_ids=ids, position_ids=positions, logits_to_keep=keep, use_cache=False
            ).logits[0]
        return row[:, : self.vocab_size]

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor([numbers], dtype=torch.long, device=self.device)

    def _rows(self, total: int, keep: Sequence[int]) -> Tensor | int:
        """How transformers is told of `keep`: a number of last rows, which is a view, or else the rows."""
        if keep and keep[0] == total - len(keep):
            return len(keep)
        return self._ids(keep)[0]

    def plain_logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits of a whole sequence by transformers' own eager attention, the reference: [len(tokens), vocab_size]."""
        self._model.set_attn_implementation("eager")
        try:
            with torch.compiler.set_stance("force_eager"):
                return self.logits(tokens, range(len(tokens)), range(len(tokens)))
        finally:
            self._model.set_attn_implementation(NAME)

"""Wrapper of a causal language model of transformers: token ids in, logits out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec.engine.attention import ATTENTION_NAME
from specdec.engine.batch import StateRows
from specdec.engine.cpu.compiled_function import CompiledFunction, compiler_options
from specdec.engine.cpu.cpp_library import HostCode
from specdec.engine.cpu.joined_layers import JoinedLinear, join_layers
from specdec.engine.cpu.product import pack_products
from specdec.errors import ModelRefused


class Decoder:
    """Turns token ids into logits over the valid ids; attention runs in the step that the caller sets."""

    def __init__(self, model: Any, vocab_size: int, device: torch.device) -> None:
        """`model` is a causal language model of transformers."""
        self._model = model
        self.vocab_size = vocab_size
        self.device = device
        self.needs_interpreter = True
        """Whether passes need Python's interpreter outside attention, so that two passes wait for each other."""
        self.taps: tuple[int, ...] = ()
        """Layers whose input states passes can store; see `tap`."""
        model.set_attn_implementation(ATTENTION_NAME)

    def tap(self, layers: Sequence[int]) -> None:
        """Make the states that enter these layers available to passes. Call this once, before `compile`.

        The number of layers stands for the states after the last norm.

        Raises:
            ModelRefused: the model has no such layer.
        """
        count = self.config.num_hidden_layers
        if missing := [each for each in layers if not 0 <= each <= count]:
            raise ModelRefused(f"there is no layer {missing[0]} to read states from, the model has {count} layers")
        self.taps = tuple(layers)
        base, run = self._model.base_model, self._model.base_model.forward

        def tapped(**given: Any) -> Any:
            found = run(**given, output_hidden_states=True)
            states = (*found.hidden_states[:count], found.last_hidden_state)
            return type(found)(
                last_hidden_state=found.last_hidden_state, hidden_states=tuple(states[each] for each in self.taps)
            )

        base.forward = tapped

    def pack(self, products: HostCode) -> None:
        """Pack the weights on the host for the operator of products, if `products` allows it.

        Raises:
            ModelRefused: `products` requires the operator, which is not available.
        """
        pack_products(self._model, products)

    def compile(self) -> None:
        """Compile the model with PyTorch at its next passes: once for one token, and once for several."""
        layers = self._model.base_model  # without the head, which a smaller one may replace later
        join_layers(layers, JoinedLinear)  # layers that are not packed
        layers.forward = CompiledFunction(layers.forward, compiler_options(self.device), 1)
        self.needs_interpreter = self.device.type != "cpu"

    @property
    def config(self) -> Any:
        """The model's text configuration."""
        return self._model.config.get_text_config(decoder=True)

    @property
    def head(self) -> Any:
        """The module that turns the last layer's states into logits."""
        return self._model.get_output_embeddings()

    @head.setter
    def head(self, head: nn.Module) -> None:
        self._model.set_output_embeddings(head)

    def embed(self, ids: Tensor) -> Tensor:
        """Embedding of ids, [...] -> [..., hidden]."""
        embedded: Tensor = self._model.get_input_embeddings()(ids)
        return embedded

    def logits(
        self, tokens: Sequence[int], positions: Sequence[int], keep: Sequence[int], states: StateRows | None = None
    ) -> Tensor:
        """Logits of the tokens `keep` of one packed row, float32 [len(keep), vocab_size], as a copy for the caller.

        The states of all tokens that enter the tapped layers go to `states`.
        """
        rows = self.run(self._ids(tokens), self._ids(positions), self._rows(len(tokens), keep), states)
        # The copy is made outside inference mode: a tensor from inside could not be written later.
        return rows.to(torch.float32, copy=True)

    def run(self, ids: Tensor, positions: Tensor, keep: Tensor | int, states: StateRows | None = None) -> Tensor:
        """Run one pass over a packed row. The pass has no device sync, so it can be captured.

        Args:
            ids: token ids [1, T].
            positions: position of each token in its session [1, T].
            keep: indices of the tokens that need logits, or the number of last tokens that do; 0 is all.
            states: destination of the states that enter the tapped layers; None if nothing reads them.

        Returns:
            Logits [rows, vocab_size], the model's own tensor in the model's dtype.
        """
        with torch.inference_mode():
            found = self._model(input_ids=ids, position_ids=positions, logits_to_keep=keep, use_cache=False)
            if states is not None:
                states.put([each[0] for each in found.hidden_states])
            row: Tensor = found.logits[0]
        return row[:, : self.vocab_size]

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor([numbers], dtype=torch.long, device=self.device)

    def _rows(self, total: int, keep: Sequence[int]) -> Tensor | int:
        """Convert `keep` for transformers: a number of last tokens, which selects a view, or else the indices."""
        if keep and keep[0] == total - len(keep):
            return len(keep)
        return self._ids(keep)[0]

    def plain_logits(self, tokens: Sequence[int]) -> Tensor:
        """Reference logits of a whole sequence by transformers' own eager attention: [len(tokens), vocab_size].

        The decoder must be neither packed nor compiled.
        """
        self._model.set_attn_implementation("eager")
        try:
            return self.logits(tokens, range(len(tokens)), range(len(tokens)))
        finally:
            self._model.set_attn_implementation(ATTENTION_NAME)

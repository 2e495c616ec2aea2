"""A causal language model of transformers, as the engine calls it: token ids in, logits out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec.engine.attention import ATTENTION_NAME
from specdec.engine.cpu.compiled_layers import CompiledLayers
from specdec.engine.cpu.cpp_library import HostCode
from specdec.engine.cpu.joined_layers import JoinedLinear, join_layers
from specdec.engine.cpu.product import pack_products


class Decoder:
    """Turns token ids into logits over the valid ids; attention runs in the step that the caller has set."""

    def __init__(self, model: Any, vocab_size: int, device: torch.device) -> None:
        """`model` is a causal language model of transformers."""
        self._model = model
        self.vocab_size = vocab_size
        self.device = device
        self.needs_interpreter = True
        """Whether passes ask for Python's interpreter, beside their attention, so that two wait for each other."""
        model.set_attn_implementation(ATTENTION_NAME)

    def pack(self, products: HostCode) -> None:
        """Keep the weights on the host as its operator of products reads them, as far as `products` says.

        Raises:
            ModelRefused: the operator is asked for and cannot be had.
        """
        pack_products(self._model, products)

    def compile(self) -> None:
        """Let PyTorch compile the model at its next runs: once for one token, and once for any other number of them."""
        # A number that the layers share is no input, which every pass would make a tensor of.
        torch._dynamo.config.specialize_float = True
        options: dict[str, Any] = {
            # Without it the compiled code would look up the number of threads in every loop, and use one thread.
            "cpp.threads": torch.get_num_threads(),
            # The whole pass is C++, and other threads of Python go on meanwhile.
            "cpp_wrapper": self.device.type == "cpu",
            # Only the kernels are compiled with all optimizations, which would take long for what calls them.
            "cpp_wrapper_build_separate": True,
            # To look at every tensor's shape takes time in each pass, and the engine's check compares the logits.
            "size_asserts": False,
        }
        layers = self._model.base_model  # without the head, which may yet be replaced by a smaller one
        join_layers(layers, JoinedLinear)  # those that are not packed
        layers.forward = CompiledLayers(layers, options)
        self.needs_interpreter = self.device.type != "cpu"
        # C++ would take the interpreter to release a weight that only Python refers to; a view refers to it as well.
        self._views = [each.view_as(each) for each in (*layers.parameters(), *layers.buffers())]

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

    def logits(self, tokens: Sequence[int], positions: Sequence[int], keep: Sequence[int]) -> Tensor:
        """Logits of the tokens `keep` of one packed row, float32 [len(keep), vocab_size], a copy the caller owns."""
        rows = self.run(self._ids(tokens), self._ids(positions), self._rows(len(tokens), keep))
        # The copy is made outside inference mode: a tensor made inside could not be written to later.
        return rows.to(torch.float32, copy=True)

    def run(self, ids: Tensor, positions: Tensor, keep: Tensor | int) -> Tensor:
        """One pass over a packed row. It can be captured, because there is no device sync in it.

        Args:
            ids: token ids [1, T].
            positions: position of each token in its session [1, T].
            keep: indices of the tokens that need logits, or how many of the last tokens do; 0 is all.

        Returns:
            Logits [rows, vocab_size], the model's own tensor in the model's dtype.
        """
        with torch.inference_mode():
            row: Tensor = self._model(
                input_ids=ids, position_ids=positions, logits_to_keep=keep, use_cache=False
            ).logits[0]
        return row[:, : self.vocab_size]

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor([numbers], dtype=torch.long, device=self.device)

    def _rows(self, total: int, keep: Sequence[int]) -> Tensor | int:
        """`keep` as transformers takes it: a number of last tokens, which makes a view, or else the indices."""
        if keep and keep[0] == total - len(keep):
            return len(keep)
        return self._ids(keep)[0]

    def plain_logits(self, tokens: Sequence[int]) -> Tensor:
        """Reference logits of a whole sequence by transformers' own eager attention: [len(tokens), vocab_size].

        It is for a decoder that is neither packed nor compiled.
        """
        self._model.set_attn_implementation("eager")
        try:
            return self.logits(tokens, range(len(tokens)), range(len(tokens)))
        finally:
            self._model.set_attn_implementation(ATTENTION_NAME)

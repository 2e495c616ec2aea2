"""Target and drafter of any size with random weights, and timing of work on a device."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.engine import NativeEngine
from specdec.engine.decoder import Decoder
from specdec.engine.loader import ModelFacts
from specdec.engine.model_check import read_kv_layout

_SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "8b": {
        "target": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
        "drafter": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
        "both": {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192},
    },
    "tiny": {
        "target": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
        "drafter": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4},
        "both": {"num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512},
    },
}


@dataclass(frozen=True, slots=True)
class Bench:
    """Both engines, a model of transformers of the target's sizes, and the device."""

    model: Any
    target: NativeEngine
    drafter: NativeEngine
    target_bytes: int
    """Bytes of weights that a step of the target reads."""
    drafter_bytes: int
    """Bytes of weights that a step of the drafter reads."""
    device: torch.device

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds of `work`, including the kernels that it launches."""
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def build(shape: str, device: torch.device, *, compiled: bool) -> Bench:
    """Build both models with random bfloat16 weights on the device. `compiled` is as in `NativeEngine.load`."""
    sizes = _SHAPES[shape]
    target, drafter = ({**sizes["both"], **sizes[which]} for which in ("target", "drafter"))
    model, small = _model(target, device), _model(drafter, device)
    read = _bytes(model), _bytes(small)
    return Bench(model, _engine(_model(target, device), compiled), _engine(small, compiled), *read, device)


def _model(settings: dict[str, Any], device: torch.device) -> Any:
    with torch.device(device):
        model = LlamaForCausalLM._from_config(LlamaConfig(**settings), dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    return model


def _engine(model: Any, compiled: bool) -> NativeEngine:
    config = model.config
    decoder = Decoder(model, config.vocab_size, model.device)
    if compiled:
        decoder.compile()
    facts = ModelFacts("random", config.vocab_size, config.max_position_embeddings, frozenset(), "", "")
    layout = read_kv_layout(decoder)
    return NativeEngine(decoder, facts, layout, layout.token_bytes * config.max_position_embeddings)


def _bytes(model: Any) -> int:
    """Return the weights that a step reads: all but the table of embeddings, of which it reads one row."""
    table = model.get_input_embeddings().weight
    return int(sum(weight.nbytes for weight in model.parameters()) - table.nbytes)

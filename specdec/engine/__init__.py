"""The native engine: Hugging Face models, and one packed ragged forward pass over any number of sessions.

`NativeEngine.load` loads a local model folder. `NativeEngine.forward` then turns chunks of tokens into logits; the keys
and values of every session stay inside. `protocol` defines the interface of engines. `loader` reads a model and
`model_check` tests it, `kv` shares memory between sessions, and `cpu` and `cuda` implement storage of keys and values
and attention.
"""

from specdec.engine.batch import Chunk
from specdec.engine.loader import load_tokenizer_json, load_vocabulary
from specdec.engine.native import NativeEngine
from specdec.engine.protocol import Engine, SequenceMemory

__all__ = ["Chunk", "Engine", "NativeEngine", "SequenceMemory", "load_tokenizer_json", "load_vocabulary"]

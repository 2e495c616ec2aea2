"""The native engine: Hugging Face models, and one packed ragged forward pass over any number of sessions.

A local model folder enters `NativeEngine.load`. Then chunks of tokens enter `NativeEngine.forward`, and logits leave
it; the keys and values of every session stay inside. `protocol` says what any engine can do. `loader` reads a model and
`model_check` tests it, `kv` shares memory between sessions, and `cpu` and `cuda` are the two ways to store keys and
values and to attend to them.
"""

from specdec.engine.batch import Chunk
from specdec.engine.loader import load_tokenizer_json, load_vocabulary
from specdec.engine.native import NativeEngine
from specdec.engine.protocol import Engine, SequenceMemory

__all__ = ["Chunk", "Engine", "NativeEngine", "SequenceMemory", "load_tokenizer_json", "load_vocabulary"]

"""Room of the models: a local model folder in, logits for many sessions in one packed pass out."""

from specdec.engine.batch import Chunk
from specdec.engine.loader import load_vocabulary
from specdec.engine.native import NativeEngine
from specdec.engine.protocol import Engine, SequenceMemory

__all__ = ["Chunk", "Engine", "NativeEngine", "SequenceMemory", "load_vocabulary"]

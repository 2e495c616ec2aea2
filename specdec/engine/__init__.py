"""Room of the models: a local model folder in, logits for many sessions in one packed pass out."""

from specdec.engine.batch import Chunk
from specdec.engine.engine import Engine
from specdec.engine.loader import load_vocabulary

__all__ = ["Chunk", "Engine", "load_vocabulary"]

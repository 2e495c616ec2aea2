"""Room of the models: a local model folder in, logits for many sessions in one packed pass out."""

from specdec.engine.batch import Chunk
from specdec.engine.engine import Engine

__all__ = ["Chunk", "Engine"]

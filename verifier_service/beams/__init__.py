"""Beam search on the native engine: the target's passes over all beams, the proposals of drafters, and the generation.

A search does not take part in the engine loop. Its passes run on the model thread, between passes of the loop."""

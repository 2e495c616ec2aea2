"""Beam search on the native engine: the target's passes over all beams, the proposals of drafters, and the generation.

A search is no sequence of the engine loop: its passes run on the model thread between those of the loop.
"""

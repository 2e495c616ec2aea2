"""Measurements of speculative decoding: peers on one pair of models, run in turn and compared by ratios."""

"""Measurements of speculative decoding: peers on one pair of models, measured in turns, as ratios."""

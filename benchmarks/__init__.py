"""What speculative decoding is worth here: peers on one pair of models, measured in turn, as ratios."""

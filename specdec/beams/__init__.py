"""Beam search: its options, and the pure rules of its steps."""

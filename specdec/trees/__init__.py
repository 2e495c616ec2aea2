"""Draft trees: shape, joining and verification."""

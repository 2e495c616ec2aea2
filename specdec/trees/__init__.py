"""Draft trees: their shape, how several are joined, and how one is verified."""

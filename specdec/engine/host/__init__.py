"""Keys and values on the host: a slab for each session, read as views by PyTorch's own attention."""

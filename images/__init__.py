"""Builds the container images without a registry: `python -m images`; `make images` calls it."""

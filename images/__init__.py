"""Build the container images without a registry: `python -m images`, which `make images` runs."""

"""Keys and values on an accelerator: pages that sessions share, and passes that are captured once and replayed.

`backend` is the entry point of the engine. `pages` stores keys and values in pages. `inputs` turns a pass into one flat
row of integers, and `runner` runs it, by a graph from `graphs` if one fits. `paged_step` defines the attention kernels,
which `triton_kernels` and `triton_code` implement in Triton. Without kernels, `paged_step` gathers the pages of each
session and attends on plain PyTorch.
"""

"""Keys and values on an accelerator: pages that sessions share, and passes that are captured once and replayed.

`backend` is what the engine opens. `pages` holds keys and values in pages. `inputs` turns a pass into
one flat row of integers, and `runner` runs it, replayed from `graphs` if a graph fits. `paged_step` says what attention
needs of a device, which `triton_kernels` and `triton_code` are in Triton; without it, `paged_step` gathers the pages of
each session and attends on plain PyTorch.
"""

"""Batches of rows on one target.

One step of `model_thread` follows the other. A step admits sequences to KV (`kv_admission`), divides the pass among
the rows (`batch_plan`) and runs it (`target_pass`). Outcomes leave: a verdict with the time of its pass. Plain passes
`run_ahead` of the sequences by one, unless these have `told` otherwise. `costs` learns from passes and waits what the
choice of γ needs.
"""

"""What computes passes: what every backend is asked and answers, and the native backend.

One step of `model_thread` follows the other. A step admits sequences to KV (`kv_admission`), divides the pass among
the rows (`batch_plan`) and runs it (`target_pass`). Outcomes leave: a verdict with the time of its pass. Plain passes
`run_ahead` of the sequences by one, unless these have `told` otherwise.
"""

"""Continuous batching over one engine.

Rows of all sessions enter at `scheduler`, which runs one step of `model_thread` after the other. A step admits
sequences to KV (`kv_admission`), divides the pass among the rows (`batch_plan`) and runs it (`target_pass`). Outcomes
leave: a verdict with the time of its pass. Plain passes `run_ahead` of the sessions by one, unless these have `told`
otherwise. Rounds that still wait for their drafts are `announced`, and a pass waits for those that are worth it.
`costs` learns from passes and waits what the choice of γ needs.
"""

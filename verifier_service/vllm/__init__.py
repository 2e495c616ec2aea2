"""Target on unmodified vLLM: vLLM's scheduler, workers and kernels with our rows, drafts and verdicts.

The target runs in a process of its own. `remote` is its client in the verifier. `child` is its main module, in which
`target` loads vLLM and `model` runs the steps. Both exchange `messages`, and flags in shared memory (`shared_flags`).

A step passes the waiting rows to `row_scheduler`, a subclass of vLLM's scheduler that runs the requests with a row and
holds back the others. The rows travel to the workers with the scheduler's output. There, `judge` replaces vLLM's
sampler, and its verdicts return with the worker's output. Only this package imports vLLM, and only if `backend` is
`vllm`. `interfaces` lists every part of vLLM that it uses.
"""

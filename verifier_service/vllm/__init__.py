"""The target on vLLM, unforked: its scheduler, its worker and its kernels; our rows, our drafts and our verdicts.

`target` loads it and `model` is what the scheduler of this process steps. A step hands the rows that wait to
`row_scheduler`, vLLM's scheduler in a subclass: it runs the sequences that have a row and holds back the others. The
rows go to the workers beside vLLM's own plan; there `judge` sits where vLLM's sampler would, and its verdicts come back
the same way. Only this room imports vLLM, and only where `backend` is `vllm`; `interfaces` names all that it touches.
"""

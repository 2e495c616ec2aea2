"""The target on vLLM, unforked: its scheduler, its worker and its kernels; our rows, our drafts and our verdicts.

It has a process of its own. `remote` is that process as the scheduler of this one sees it, `child` is what runs in it:
`target` loads vLLM and `model` does the steps. Rows go there and steps come back as `messages`; what neither may wait
for is in memory that both share, `shared_told`. A step hands the rows that wait to `row_scheduler`, vLLM's scheduler in
a subclass: it runs the sequences that have a row and holds back the others. The rows go to the workers beside vLLM's
own plan; there `judge` sits where vLLM's sampler would, and its verdicts come back the same way. Only this room imports
vLLM, and only where `backend` is `vllm`; `interfaces` names all that it touches.
"""

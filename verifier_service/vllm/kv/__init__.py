"""KV blocks that a target on vLLM exchanges. Only `verifier_service.vllm.kv_connector` passes them to vLLM.

`mover` is the verifier's side, which frames and checks values. It asks the target's process through `port`, with
`messages`. There, `blocks` knows the blocks by our chain of hashes, and `copies` copies them in each worker.
"""

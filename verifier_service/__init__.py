"""The verifier hosts the target model and judges drafts with it.

A call of a gateway enters at `service` as protobuf, is checked, and becomes a sequence in `passes`. A sequence takes
drafts from `drafts`, `speculation` chooses their length, and `backends` or `vllm` judges the rows of all sequences in
passes. Rounds leave as protobuf messages. Blocks of keys and values come and go through `kv`. `app` makes all parts and
joins them; imports run from `passes` to `drafts` and `speculation` to `backends`, and never back.
"""

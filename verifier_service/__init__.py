"""Verifier service: hosts the target model and verifies drafts with it.

`service` receives a gateway's calls as protobuf messages, and `passes` checks each call and turns it into a sequence.
`drafts` supplies the drafts of a sequence, and `speculation` chooses their length. `backends` or `vllm` runs passes
over the rows of all sequences and returns verdicts. Rounds are sent to the gateway as protobuf messages. `kv` exports
and restores KV blocks. `app` creates and connects all parts. Imports run from `passes` to `drafts` and `speculation` to
`backends`, never back.
"""

"""The verifier hosts the target model and judges drafts with it.

A call of the gateway enters at `service` as protobuf, is checked, and becomes a session in `generation`. The session
takes drafts from `drafters`, has them judged in passes that `batching` forms out of the rows of all sessions, and
yields rounds, which leave as a stream of protobuf messages. Blocks of keys and values come and go through `kv`. `app`
makes all parts and joins them; imports run from `generation` to `drafters` to `batching`, and never back.
"""

"""The HTTP API: OpenAI's endpoints, with vLLM's additions and ours.

JSON bodies and headers enter, and are checked field by field into a GenerationRequest; every refusal names its field.
Events of generations come back from `gateway.turns` and leave as one JSON answer or as a stream of server-sent events.
`routes` has the endpoints, `completions` and `sampling` the bodies, `writers` the answers, `openapi` the description.
"""

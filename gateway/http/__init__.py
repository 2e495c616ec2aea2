"""HTTP API: OpenAI's endpoints, with vLLM's additions and ours.

JSON bodies and headers are validated field by field and become a GenerationRequest; every refusal names its field.
Events of generations from `gateway.turns` become one JSON answer or a stream of server-sent events.
`routes` has the endpoints, `completions` and `sampling` the bodies, `writers` the answers, `openapi` the description.
"""

"""Tool calls and thinking in the output of models.

`values` defines tools, calls and messages, and `choice` the tools that a request offers.
`formats` defines how models write calls, each with the grammar that constrains a model to it. `parsers`, `json_calls`,
`xml_calls` and `harmony` parse calls from a stream of text, and `thinking` parses the thinking before an answer.
`message_reader` combines them as `reading` specifies. `turns` converts messages for chat templates, and `template`
describes tools to a model whose chat template does not support them.
"""

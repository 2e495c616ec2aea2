"""Room of the forms that output can have: grammars that callers ask for, and calls of the tools that they offer.

What a caller wants enters; a grammar, or text that a model reads, leaves. `structured` makes the grammars of callers'
forms, of schemas in the words of `schemas` and expressions in those of `patterns`. `values` has tools and calls,
`conversation` the messages that have them, and `choice` what a request offers.
`formats` has the ways in which models write calls, each with the grammar that binds a model to it, of parts that
`writing` has; `parsers`, `json_calls`, `xml_calls` and `harmony` read calls from a stream of text, and `thinking` what
is thought before an answer, as `reading` says for `message_reader`; and `template` describes tools to a model whose
chat template cannot.
"""

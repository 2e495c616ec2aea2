"""Room of the forms that output can have: grammars that callers ask for, and calls of the tools that they offer.

What a caller wants enters; a grammar, or text that a model reads, leaves. `structured` makes the grammars of callers'
forms, of schemas in the words of `schemas` and expressions in those of `patterns`. `values` has tools and calls,
`conversation` the messages that have them, and `choice` what a request offers.
`formats` has the ways in which models write calls, each with the grammar that binds a model to it; `parsers` and
`json_calls` read calls from a stream of text, for `message_reader`; and `template` describes tools to a model whose
chat template cannot.
"""

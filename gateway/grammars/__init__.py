"""Grammars that callers ask for.

`structured` creates the grammar of a requested form: schema, regular expression, choice or grammar. `schemas` rewrites
JSON Schemas and `patterns` regular expressions for the grammar library, and `json_lark` Lark grammars for texts inside
JSON strings. `json_bounds` bounds the JSON that callers send.
"""

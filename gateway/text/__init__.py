"""Text and tokens: converts prompts to token ids, and committed token ids to text that may be shown.

The tokenizer converts a prompt to token ids. `output` takes the tokens of each round, holds a token back while its text
may still change or be cut at a stop string, and returns tokens with their final text. This package is independent of
sessions, verifiers and transports.
"""

"""Text and tokens: prompts become token ids, committed token ids become text that may be shown.

A prompt enters the tokenizer, and its token ids leave. The tokens of each round enter `output`, which holds a token
back while its text may still change or be cut at a stop string; tokens with their final text leave. Nothing here knows
sessions, verifiers or transports.
"""

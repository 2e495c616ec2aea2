"""Anthropic's Messages: a body becomes the chat that it is, and the events of its generation become content blocks."""

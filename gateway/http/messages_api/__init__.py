"""Anthropic's Messages API: converts a body to a chat, and the events of its generation to content blocks."""

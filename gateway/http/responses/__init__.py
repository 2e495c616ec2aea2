"""OpenAI's Responses API: converts a body to a chat, and the events of its generation to output items.

`previous_response_id` continues the session of an earlier response, which is one of its turns.
"""

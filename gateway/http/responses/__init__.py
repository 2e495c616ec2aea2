"""OpenAI's Responses: a body becomes the chat that it is, and the events of its generation become output items.

`previous_response_id` continues the session that the response before it is a turn of.
"""

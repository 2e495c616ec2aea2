"""Processes beside the gateway for work that a caller can make slow: each may be killed, and the gateway lives on.

`process` has the gateway's end, which asks and gives up, and `serving` the worker's, which answers.
"""

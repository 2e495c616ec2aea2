"""Worker processes for work that a caller can make slow. The gateway may kill a worker and continue.

`process` is the gateway's side, which asks questions with a timeout, and `serving` the worker's side, which answers.
"""

"""Sequences and the loop over them.

A call becomes a `sequence` (`generations`), which the `engine_loop` carries from pass to pass: it schedules the rows
that are ready, runs them on the target, and concludes what the verdicts commit (`conclude`). No task, future or queue
belongs to a sequence. Its rounds go to its reader: the stream of its gateway (`gateway_stream`) or a call (`readers`).
"""

"""Sequences and their scheduling loop.

`generations` turns a call into a `sequence`. The `engine_loop` schedules the ready rows of all sequences, runs them on
the target, and commits the verdicts (`conclude`). A sequence owns no task, future or queue. Its rounds go to its
reader: the stream of a gateway (`gateway_stream`) or a single call (`readers`).
"""

"""Execution of passes: the interface of all backends, and the native backend.

`model_thread` runs the steps. A step admits sequences, lets the target's head draft (`head_drafter`), divides the pass
among the rows (`batch_plan`) and runs it (`target_pass`). Its results are verdicts with the time of their pass. Plain
passes run ahead of the sequences by one round, unless the event loop stops them (`model_step`).
"""

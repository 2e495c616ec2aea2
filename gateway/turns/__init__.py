"""The life of a turn: from a request to the events of its generation.

A GenerationRequest enters at `generation`, which makes the verifier's call, opens the turn in the session store and
starts a broadcast of its events. `turn_stream` publishes them: it runs a `turn_runner` while this gateway owns the
turn, and follows another owner otherwise. A `pass_loop` of each verifier receives rounds, commits them and hands them
to the `attempt` of each turn. Events leave: Started, OutputRounds, Finished. `leases` keeps the ownership of all turns,
`adopter` continues turns whose gateway died, and `sessions` creates, lists and deletes sessions.
"""

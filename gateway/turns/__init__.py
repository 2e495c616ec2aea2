"""The life of a turn: from a request to the events of its generation.

A GenerationRequest enters at `generation`, which makes the verifier's call, opens the turn in the session store and
starts a broadcast of its events. A turn runner owns the turn and commits the rounds that verifiers send; a turn stream
also follows turns that another gateway owns. Events leave: Started, OutputRounds, Finished. `adopter` continues turns
whose gateway died, and `sessions` creates, lists and deletes sessions.
"""

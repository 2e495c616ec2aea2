"""Room of the sessions: the messages of the verifiers come in, the drafts of their sessions go out.

A Connection reads one verifier's frames and hands their messages to the Worker, the one thread that owns the drafter.
On that thread the DraftRunner keeps the SessionTable, plans each step and collects the replies, which wait in the
connection's SendQueue until gRPC has sent them. What a drafter must be able to do is the Drafter protocol.
"""

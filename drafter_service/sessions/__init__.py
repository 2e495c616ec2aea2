"""The drafter's sessions: verifiers send messages, and receive the drafts of their sessions.

A Connection reads one verifier's frames and passes their messages to the Worker, the only thread that uses the drafter.
On that thread the DraftRunner keeps the SessionTable, plans each step and collects the replies. Replies wait in the
connection's SendQueue until gRPC has sent them. The Drafter protocol defines the interface of a source of drafts.
"""

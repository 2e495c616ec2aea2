"""Verifiers: readiness, assignment of sessions, and failover.

Input is verifier addresses from discovery and GenerationCalls from turns; output is rounds. `balancer` probes all
verifiers and assigns one to each session. `failover` continues a generation at another verifier. `round_streams` holds
one stream per verifier for all its generations, and `client` implements hop 1 over gRPC. `specdec.wire.generation` and
`specdec.wire.passes` define the values of hop 1.
"""

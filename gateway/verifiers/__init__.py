"""The verifiers: which of them are ready, which one serves a session, and what happens when one is lost.

The addresses of verifiers enter from discovery, and GenerationCalls from turns; the rounds of a generation leave.
`balancer` probes all verifiers and chooses one for each session, `failover` continues a generation at another verifier,
`client` speaks hop 1 over gRPC. The values of hop 1 are defined in `specdec.wire.generation`.
"""

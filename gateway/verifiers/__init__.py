"""The verifiers: which of them are ready, which one serves a session, and what happens when one is lost.

The addresses of verifiers enter from discovery, and GenerationCalls from turns; rounds leave. `balancer` probes all
verifiers and chooses one for each session, `failover` continues a generation at another verifier, `round_streams` has
the stream to each verifier that carries all generations there, and `client` speaks hop 1 over gRPC. The values of hop 1
are defined in `specdec.wire.generation` and `specdec.wire.passes`.
"""

"""Gateway: the public entry point of the service, over HTTP in OpenAI's format and over gRPC.

Input is requests of callers; output is committed tokens and text. A request becomes a turn of a session, which the
session store keeps in Redis. A verifier generates the turn, and every round is committed before it is shown. The
gateway holds no model, and no state that another gateway cannot read from the store. `app` assembles the process, and
`request` defines the value that both APIs produce.
"""

"""The gateway: the public entrance of the service, over HTTP in OpenAI's format and over gRPC.

Requests of callers enter; committed tokens and text leave. A request becomes a turn of a session, which the session
store in Redis keeps; a verifier generates it, and every round is committed before it is shown. The gateway holds no
model and no state that another gateway could not read from the store. `app` joins the parts of the process; `request`
is the value that both APIs make of what they are sent.
"""

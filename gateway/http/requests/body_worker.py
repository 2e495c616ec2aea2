"""Reads the large bodies of HTTP requests: `python -m gateway.http.requests.body_worker`.

A question is a pickled model and the bytes of a body; the answer is the checked body, or why it is refused.
"""

import pickle

from gateway.http.requests import completions, session_bodies, token_bodies
from gateway.http.requests.body import Body, parse_json
from gateway.workers.serving import serve
from specdec.errors import RequestError

_MEMORY = 2 * 2**30
"""Bytes of address space."""
READS = (completions, session_bodies, token_bodies)
"""Modules of the bodies, which are imported before the first question."""

Refusal = tuple[type[RequestError], str, str]
"""An error, its message and its field."""


def answer(question: bytes) -> bytes:
    """The answer to a question."""
    kind, raw = pickle.loads(question)
    return pickle.dumps(read(kind, raw))


def read(kind: type[Body], raw: bytes) -> Body | Refusal:
    """The body, or its refusal."""
    try:
        return kind.parse(parse_json(raw))
    except RequestError as error:
        return type(error), error.message, error.param


if __name__ == "__main__":
    serve(answer, _MEMORY)

"""Serializes the request of a response into its turn, so that the response can be shown again."""

import json

from gateway.http.responses.body import RESPONSE, SHOWN, ResponsesBody
from specdec.errors import GenerationNotFound

_FORMAT = "responses "
_LONG = 64 * 1024
"""Length in characters above which a request's tools and instructions are not stored."""


def stored(body: ResponsesBody) -> str:
    """Serialize the parts of a request that answers repeat, for `stored_body`."""
    if body.store is False:
        return _FORMAT + '{"store": false}'
    shown = body.model_dump(mode="json", by_alias=True, exclude_none=True, include=SHOWN | {"reasoning", "text"})
    text = json.dumps(shown, ensure_ascii=False)
    if len(text) > _LONG:
        text = json.dumps({name: value for name, value in shown.items() if name not in ("instructions", "tools")})
    return _FORMAT + text


def stored_body(text: str) -> ResponsesBody:
    """Parse a request from `stored`, without its input; raises GenerationNotFound if it was not to be stored."""
    if not text.startswith(_FORMAT):
        raise unknown_response()
    body = ResponsesBody.parse({"input": "", **json.loads(text.removeprefix(_FORMAT))})
    if body.store is False:
        raise unknown_response()
    return body


def turn_name(response: str) -> str:
    """Return the name of a response's turn; raises GenerationNotFound."""
    match = RESPONSE.fullmatch(response)
    if match is None:
        raise unknown_response()
    return f"{match[1]}-{match[2]}"


def unknown_response() -> GenerationNotFound:
    """Return the error for an unknown response id."""
    return GenerationNotFound("no such response", "response_id")

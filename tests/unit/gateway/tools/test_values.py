"""Messages go to the gateway from the process that reads large bodies."""

import pickle
from dataclasses import fields
from typing import Any

from gateway.tools.values import Message


def test_a_message_arrives_with_every_field() -> None:
    values: dict[str, Any] = {each.name: f"its {each.name}" for each in fields(Message)}
    message = Message(**values)
    assert pickle.loads(pickle.dumps(message)) == message

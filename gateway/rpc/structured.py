"""The form that a gRPC request asks for, as a grammar."""

from gateway.tools import structured
from protos.gateway.v1 import gateway_pb2 as pb
from specdec.errors import FieldInvalid
from specdec.rules.grammar import Grammar


def structured_output(message: pb.StructuredOutput) -> Grammar | None:
    """The grammar of a message; None where it is not set. Raises FieldInvalid."""
    form, compact = message.WhichOneof("form"), message.disable_any_whitespace
    name = f"structured_output.{form}"
    match form:
        case "json_schema":
            return structured.json_schema(message.json_schema, name, compact=compact)
        case "json_object" if message.json_object:
            return structured.json_schema({"type": "object"}, name, compact=compact)
        case "regex":
            return structured.regex(message.regex, name)
        case "choice":
            return structured.choice(list(message.choice.texts), name)
        case "grammar":
            return structured.context_free(message.grammar, name)
    if message.ByteSize():
        raise FieldInvalid("structured_output has no form", "structured_output")
    return None

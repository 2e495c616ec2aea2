"""Translation between values and protobuf messages. A message has the fields of its value, with the same names."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, get_origin, get_type_hints

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

V = TypeVar("V")
M = TypeVar("M", bound=Message)


class Pair(NamedTuple):
    """A translation made of two functions."""

    to_pb: Callable[[Any], Any]
    from_pb: Callable[[Any], Any]


def each(translation: "Translation") -> Pair:
    """Return the translation of a repeated field, applied to each element."""
    return Pair(
        lambda values: [translation.to_pb(value) for value in values],
        lambda messages: tuple(translation.from_pb(message) for message in messages),
    )


def optional(translation: "Translation") -> Pair:
    """Return the translation of an optional message. None and an empty message are both sent as unset."""
    return Pair(
        lambda value: None if value is None else translation.to_pb(value),
        lambda message: translation.from_pb(message) if message.ByteSize() else None,
    )


class EnumCodec(Generic[V]):
    """Translation between enum members and the protobuf numbers with the same names, so a new member needs no code."""

    def __init__(self, members: type[Enum], numbers: EnumDescriptor, unknown: V) -> None:
        """Create the codec. `unknown` is the value of a number without a member; as a non-member it is sent as 0."""
        prefix = numbers.values[0].name.removesuffix("UNSPECIFIED")
        self._numbers: dict[Any, Any] = {
            member: numbers.values_by_name[prefix + member.name].number for member in members
        }
        self._members: dict[int, Any] = {number: member for member, number in self._numbers.items()}
        self._unknown = unknown

    def to_pb(self, value: V) -> Any:
        return self._numbers.get(value, 0)

    def from_pb(self, number: int) -> V:
        member: V = self._members.get(number, self._unknown)
        return member


class Codec(Generic[V, M]):
    """Translation between a frozen dataclass or named tuple and its message.

    Fields of equal type are copied. An unset optional field of the message gives the default of the field.
    """

    def __init__(
        self, value: type[V], message: type[M], names: Mapping[str, str] | None = None, **translations: "Translation"
    ) -> None:
        """Derive the fields.

        Args:
            names: the name in the message of each field that has another one there.
            translations: the ways of the fields that cannot be copied.
        """
        self._value = value
        self._message = message
        self._fields = [
            (name, (names or {}).get(name, name), translations.get(name, _copy(kind)))
            for name, kind in get_type_hints(value).items()
        ]
        known = message.DESCRIPTOR.fields_by_name
        self._optional = {name for name, field in known.items() if field.has_presence and not field.message_type}

    def to_pb(self, value: V) -> M:
        return self._message(**{theirs: way.to_pb(getattr(value, ours)) for ours, theirs, way in self._fields})

    def from_pb(self, message: M) -> V:
        """Return the value of a message.

        Raises:
            RequestError: a field makes no sense; the error names it.
        """
        found = {
            ours: way.from_pb(getattr(message, theirs))
            for ours, theirs, way in self._fields
            if theirs not in self._optional or message.HasField(theirs)
        }
        return self._value(**found)


def _copy(kind: Any) -> Pair:
    """Return the translation of a field with the same elements on both sides, which only converts containers."""
    copies: dict[Any, Callable[[Any], Any]] = {tuple: tuple, Mapping: dict}
    return Pair(lambda value: value, copies.get(get_origin(kind), lambda value: value))


Translation = Pair | EnumCodec[Any] | Codec[Any, Any]
"""Translation of one field to and from protobuf."""

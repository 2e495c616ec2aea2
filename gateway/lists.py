"""Lists that a caller sends: bounded, and read without repetitions."""

from collections.abc import Collection, Sequence

from specdec.errors import FieldInvalid

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_IDS = 4096
"""Most token ids in one field that lists them, and most biases."""


def unique_ids(ids: Collection[int], param: str) -> tuple[int, ...]:
    """The ids of a field without repetitions; raises FieldInvalid when there are over MAX_IDS of them."""
    if len(ids) > MAX_IDS:
        raise FieldInvalid(f"{param} takes at most {MAX_IDS} token ids, got {len(ids)}", param)
    return tuple(dict.fromkeys(ids))


def unique_stops(stops: Collection[str]) -> tuple[str, ...]:
    """The stop strings without repetitions; raises FieldInvalid when there are over MAX_STOPS of them."""
    if len(stops) > MAX_STOPS:
        raise FieldInvalid(f"stop takes at most {MAX_STOPS} strings, got {len(stops)}", "stop")
    return tuple(dict.fromkeys(stops))


def check_stops(stops: Sequence[str]) -> None:
    """Raise FieldInvalid unless the stop strings are few, not empty and not long."""
    if not all(unique_stops(stops)):
        raise FieldInvalid("stop must not hold an empty string", "stop")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise FieldInvalid(f"a stop string has at most {MAX_STOP_CHARS} characters", "stop")

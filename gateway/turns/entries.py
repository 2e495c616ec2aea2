"""The checksum of what the session store keeps of a turn, so that a flipped byte is found and never becomes a token.

An entry is eight hexadecimal digits, the CRC-32 of everything that belongs to it, and then its content, a JSON object.
One that begins with the object itself was written before there were checksums, and is taken as it is: no damage to a
checksum makes JSON of the rest.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from specdec.errors import SessionDiverged

_DIGITS = 8


def checked_entry(content: bytes, crc: int) -> bytes:
    """The entry of a JSON object; `crc` is the checksum of what is stored elsewhere and belongs to it."""
    return b"%08x" % zlib.crc32(content, crc) + content


def entry_content(entry: bytes, crc: int) -> bytes:
    """The content of an entry; raises SessionDiverged when the checksum does not fit it and `crc`."""
    if entry.startswith(b"{"):
        return entry
    content = entry[_DIGITS:]
    if entry[:_DIGITS] != b"%08x" % zlib.crc32(content, crc):
        raise SessionDiverged("the session store has other bytes than were written: a checksum does not fit")
    return content


@contextmanager
def readable_entry() -> Iterator[None]:
    """Raise whatever reading an entry fails with as SessionDiverged."""
    try:
        yield
    except SessionDiverged:
        raise
    except Exception as error:
        raise SessionDiverged(f"the session store has an entry that cannot be read: {error}") from error

"""Turn of a session: its public id, and the data that the session store keeps with its tokens.

A gateway needs only the header, the prompt and the committed rounds to continue a turn, or to replay its events from
any position.
"""

import hashlib
import hmac
import json
import re
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from pydantic import TypeAdapter
from pydantic_core import to_json

from gateway.callers.caller import PriorityClass
from gateway.store.values import StoredRound, TurnView
from specdec.errors import GenerationNotFound, SessionDiverged, SessionNotFound
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import GenerationCall, Round
from specdec.wire.tokens import tokens_to_bytes

_DIGITS = 8
_SESSION = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,8})")
_NOT_IN_NOTE = {"base_len", "tokens", "finish", "timing", "speedup", "detail"}


@dataclass(frozen=True, slots=True)
class Turn:
    """Identity of one turn of a tenant's session."""

    session_id: str
    tenant: str
    number: int
    """Position of the turn in its session, from 1 on."""

    @property
    def name(self) -> str:
        """Public id of the generation."""
        return f"{self.session_id}-{self.number}"

    @classmethod
    def named(cls, name: str, tenant: str) -> "Turn":
        """Return the turn with this public id.

        Raises:
            GenerationNotFound: the id is malformed.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise GenerationNotFound("no such generation", "id")
        return cls(match[1], tenant, int(match[2]))


@dataclass(frozen=True, slots=True)
class Header:
    """Parameters fixed at the start of a turn, for every gateway that continues it."""

    call: GenerationCall
    """Call for the whole turn; its tokens are the prompt. Session and epoch are set when it is sent."""
    stop: tuple[str, ...]
    """Stop strings; the output is cut where one begins."""
    model: str
    """Name under which the model is served."""
    system_fingerprint: str
    """Required fingerprint of every verifier of this turn."""
    created: int
    """Start of the turn, in Unix seconds."""
    priority: PriorityClass = PriorityClass.DEFAULT
    answer_format: str = ""
    """Answer format in the notation of the API that took the request; only that API reads it."""
    reading: str = ""
    """Format in which to parse the output for thinking and calls; empty if it is not parsed."""
    in_session: bool = False
    """Whether the caller named the session."""
    resumable: bool = True
    """Whether the caller can resume the turn."""
    choices: int = 1
    """Number of generations of the request, this one included."""
    prompts: int = 1
    """Number of prompts of the request; all have the same number of choices."""
    shows_stop: bool = False
    """Whether the text keeps the stop string that ended it."""
    shows_special: bool = False
    """Whether special tokens are shown by name, except the one that ends the output."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Every token before the output."""
        return self.call.tokens


_HEADER = TypeAdapter(Header)
_HEADER_JSON: TypeAdapter[dict[str, dict[str, object]]] = TypeAdapter(dict)
_ROUND = TypeAdapter(Round)


def check_session_id(name: str) -> str:
    """Return the id; raises SessionNotFound if it is malformed."""
    if _SESSION.fullmatch(name) is None:
        raise SessionNotFound("no such session", "session")
    return name


def new_session_id() -> str:
    """Return a random, unguessable session id."""
    return secrets.token_hex(16)


def session_id_for(secret: bytes, tenant: str, key: str) -> str:
    """Return the session id of a tenant's idempotency key. It cannot be computed without `secret`."""
    return hmac.digest(secret, f"{len(tenant)}:{tenant}:{key}".encode(), "sha256").hex()[:32]


def choice_session_id(first: str, index: int) -> str:
    """Return the session id of the choice at `index`; `first` is the id of the choice at index 0."""
    return hashlib.sha256(f"{first}:{index}".encode()).hexdigest()[:32] if index else first


def header_to_bytes(header: Header) -> bytes:
    """Serialize the header to JSON with a checksum of header and prompt. The token log holds the prompt itself."""
    sampling = header.call.sampling
    writable = replace(sampling, logit_bias=dict(sampling.logit_bias))  # pydantic cannot write a read-only mapping
    call = replace(header.call, sampling=writable)
    content = _HEADER.dump_json(replace(header, call=call), exclude={"call": {"tokens"}})
    return checked_entry(content, _header_crc(header.prompt))


def header_from_bytes(blob: bytes, prompt: tuple[int, ...]) -> Header:
    """Parse a header and add its prompt; raises SessionDiverged if the checksum of both does not match."""
    with readable_entry():
        values = _HEADER_JSON.validate_json(entry_content(blob, _header_crc(prompt)))
        values["call"]["tokens"] = ()
        header = _HEADER.validate_python(values)
    return replace(header, call=replace(header.call, tokens=prompt))


def note_of(committed: Round) -> bytes:
    """Serialize a round without its tokens: token origins, draft and log probabilities.

    The note begins with a checksum of the whole round.
    """
    if committed.draft or committed.logprobs or committed.cached_tokens:
        content = _note(committed)
    else:
        content = _plain_note(committed.origins, committed.fallback)
    finish = committed.finish.value if committed.finish else ""
    return checked_entry(content, _round_crc(committed.base_len, committed.tokens, finish))


def _note(committed: Round) -> bytes:
    defaults = Round._field_defaults
    fields = {name: value for name, value in committed._asdict().items() if name not in _NOT_IN_NOTE}
    note = {name: value for name, value in fields.items() if value != defaults[name]}
    return to_json(note, inf_nan_mode="constants")  # strict JSON has no infinite log probabilities


@lru_cache(maxsize=1024)
def _plain_note(origins: tuple[Origin, ...], fallback: str) -> bytes:
    """Return the note of a round without a draft. Many rounds share one, so it is cached."""
    return _note(Round(base_len=0, origins=origins, fallback=fallback))


def round_from(stored: StoredRound, base_len: int) -> Round:
    """Return a stored round that was committed after `base_len` tokens, without timing, speed-up and detail.

    Raises:
        SessionDiverged: the stored round differs from what was committed.
    """
    with readable_entry():
        note = json.loads(_note_content(stored, base_len))
        known = {name: value for name, value in note.items() if name in Round._fields}
        committed = _ROUND.validate_python({"base_len": base_len, "tokens": stored.tokens} | known)
        finish = FinishReason(stored.finish) if stored.finish else None
        if len(committed.origins) != len(committed.tokens):
            raise ValueError(f"{len(committed.tokens)} tokens with {len(committed.origins)} origins")
    return committed._replace(finish=finish)


def log_of(last: TurnView) -> tuple[int, ...]:
    """Return all tokens of a session, whose last turn was read as a whole; raises SessionDiverged if one changed."""
    tokens = list(header_from_bytes(last.params, last.prompt).prompt)
    for stored in last.rounds:
        tokens += round_from(stored, len(tokens)).tokens
    return tuple(tokens)


def _note_content(stored: StoredRound, base_len: int) -> bytes:
    if not stored.note and not stored.tokens:  # the store itself ended a turn without an owner
        return b"{}"
    return entry_content(stored.note, _round_crc(base_len, stored.tokens, stored.finish))


def _header_crc(prompt: tuple[int, ...]) -> int:
    return zlib.crc32(tokens_to_bytes(prompt))


def _round_crc(base_len: int, tokens: tuple[int, ...], finish: str) -> int:
    return zlib.crc32(tokens_to_bytes(tokens), zlib.crc32(f"{base_len} {finish}".encode()))


def checked_entry(content: bytes, crc: int) -> bytes:
    """Prefix JSON with its checksum; `crc` is the checksum of related data that is stored elsewhere."""
    return b"%08x" % zlib.crc32(content, crc) + content


def entry_content(entry: bytes, crc: int) -> bytes:
    """Return the content of an entry; raises SessionDiverged if the checksum does not match content and `crc`."""
    if entry.startswith(b"{"):
        return entry
    content = entry[_DIGITS:]
    if entry[:_DIGITS] != b"%08x" % zlib.crc32(content, crc):
        raise SessionDiverged("the session store has other bytes than were written: a checksum does not fit")
    return content


@contextmanager
def readable_entry() -> Iterator[None]:
    """Convert any exception from reading an entry to SessionDiverged."""
    try:
        yield
    except SessionDiverged:
        raise
    except Exception as error:
        raise SessionDiverged(f"the session store has an entry that cannot be read: {error}") from error

"""One turn of a session: its public name, and what the session store keeps of it beside its tokens.

The header, the prompt and the committed rounds are all that a gateway needs to continue a turn, or to send its events
again from any position.
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

from gateway.callers.priority import PriorityClass
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
    """Identifies one turn of one tenant's session."""

    session_id: str
    tenant: str
    number: int
    """Position of the turn in its session, from 1 on."""

    @property
    def name(self) -> str:
        """The public id of the generation."""
        return f"{self.session_id}-{self.number}"

    @classmethod
    def named(cls, name: str, tenant: str) -> "Turn":
        """The turn of a public id.

        Raises:
            GenerationNotFound: the id is not well formed.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise GenerationNotFound("no such generation", "id")
        return cls(match[1], tenant, int(match[2]))


@dataclass(frozen=True, slots=True)
class Header:
    """What was decided when a turn began; it stays the same on every gateway that continues the turn."""

    call: GenerationCall
    """The call for the whole turn; its tokens are the prompt. Session and epoch are filled in when it is sent."""
    stop: tuple[str, ...]
    """Strings that end the output, which is cut where one of them begins."""
    model: str
    """The name under which the model is served."""
    system_fingerprint: str
    """Fingerprint that every verifier of this turn must have."""
    created: int
    """When the turn began, in Unix seconds."""
    priority: PriorityClass = PriorityClass.DEFAULT
    answer_format: str = ""
    """How the answer is written, as the API that took the request spells it; only that API reads it."""
    reading: str = ""
    """How the output is read for thinking and calls; empty where it is read for none."""
    in_session: bool = False
    """Whether the caller named the session."""
    resumable: bool = True
    """Whether the caller can come back to the turn."""
    choices: int = 1
    """How many generations the request has; this is one of them."""
    prompts: int = 1
    """How many prompts the request has; each has as many choices."""
    shows_stop: bool = False
    """Whether the text ends with the stop string that ended it, which is not cut."""
    shows_special: bool = False
    """Whether special tokens are shown by their names, less the one that ends the output."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Every token before the output."""
        return self.call.tokens


_HEADER = TypeAdapter(Header)
_HEADER_JSON: TypeAdapter[dict[str, dict[str, object]]] = TypeAdapter(dict)
_ROUND = TypeAdapter(Round)


def check_session_id(name: str) -> str:
    """The id; raises SessionNotFound when it is not well formed."""
    if _SESSION.fullmatch(name) is None:
        raise SessionNotFound("no such session", "session")
    return name


def new_session_id() -> str:
    """A random session id that cannot be guessed."""
    return secrets.token_hex(16)


def session_id_for(secret: bytes, tenant: str, key: str) -> str:
    """The session id of an idempotency key: the same for the same tenant and key, and a secret of those who know it."""
    return hmac.digest(secret, f"{len(tenant)}:{tenant}:{key}".encode(), "sha256").hex()[:32]


def choice_session_id(first: str, index: int) -> str:
    """The session id of the choice at `index`, from the id of the first choice, whose index is 0."""
    return hashlib.sha256(f"{first}:{index}".encode()).hexdigest()[:32] if index else first


def header_to_bytes(header: Header) -> bytes:
    """The header as JSON, without the prompt, which the session's token log has; with a checksum of both."""
    sampling = header.call.sampling
    writable = replace(sampling, logit_bias=dict(sampling.logit_bias))  # pydantic cannot write a read-only mapping
    call = replace(header.call, sampling=writable)
    content = _HEADER.dump_json(replace(header, call=call), exclude={"call": {"tokens"}})
    return checked_entry(content, _header_crc(header.prompt))


def header_from_bytes(blob: bytes, prompt: tuple[int, ...]) -> Header:
    """The header of that JSON and that prompt; raises SessionDiverged when they are not what was written."""
    with readable_entry():
        values = _HEADER_JSON.validate_json(entry_content(blob, _header_crc(prompt)))
        values["call"]["tokens"] = ()
        header = _HEADER.validate_python(values)
    return replace(header, call=replace(header.call, tokens=prompt))


def note_of(committed: Round) -> bytes:
    """What the session store keeps of a round beside its tokens: their origins, the draft, the log probabilities.

    It begins with a checksum of all that is kept of the round.
    """
    if committed.draft or committed.logprobs or committed.cached_tokens:
        content = _note(committed)
    else:
        content = _plain_note(committed.origins, committed.fallback)
    finish = committed.finish.value if committed.finish else ""
    return checked_entry(content, _round_crc(committed.base_len, committed.tokens, finish))


def _note(committed: Round) -> bytes:
    note = _ROUND.dump_python(committed, exclude=_NOT_IN_NOTE, exclude_defaults=True)
    return json.dumps(note, separators=(",", ":")).encode()  # strict JSON has no infinite log probabilities


@lru_cache(maxsize=1024)
def _plain_note(origins: tuple[Origin, ...], fallback: str) -> bytes:
    """What is kept of a round without a draft: the same of many."""
    return _note(Round(base_len=0, origins=origins, fallback=fallback))


def round_from(stored: StoredRound, base_len: int) -> Round:
    """A round as it was committed behind `base_len` tokens; its timing, its speedup and its detail are not kept.

    Raises:
        SessionDiverged: it is not what was committed.
    """
    with readable_entry():
        note = json.loads(_note_content(stored, base_len))
        committed = _ROUND.validate_python({"base_len": base_len, "tokens": stored.tokens} | note)
        finish = FinishReason(stored.finish) if stored.finish else None
        if len(committed.origins) != len(committed.tokens):
            raise ValueError(f"{len(committed.tokens)} tokens with {len(committed.origins)} origins")
    return replace(committed, finish=finish)


def log_of(last: TurnView) -> tuple[int, ...]:
    """All tokens of a session, whose last turn was read as a whole; raises SessionDiverged where one was changed."""
    tokens = list(header_from_bytes(last.params, last.prompt).prompt)
    for stored in last.rounds:
        tokens += round_from(stored, len(tokens)).tokens
    return tuple(tokens)


def _note_content(stored: StoredRound, base_len: int) -> bytes:
    if not stored.note and not stored.tokens:  # a turn without an owner was ended in the store
        return b"{}"
    return entry_content(stored.note, _round_crc(base_len, stored.tokens, stored.finish))


def _header_crc(prompt: tuple[int, ...]) -> int:
    return zlib.crc32(tokens_to_bytes(prompt))


def _round_crc(base_len: int, tokens: tuple[int, ...], finish: str) -> int:
    return zlib.crc32(tokens_to_bytes(tokens), zlib.crc32(f"{base_len} {finish}".encode()))


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

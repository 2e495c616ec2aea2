"""One turn of a session under its public name, and what is kept of it beside its tokens.

Whoever has a turn's header, prompt and rounds can go on where it stands, or tell it again from any position.
"""

import hashlib
import json
import re
import secrets
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from gateway.store.values import StoredRound
from gateway.turns.plan import Plan
from gateway.verifiers.verifier import VerifiedRound
from specdec.errors import GenerationNotFound, SessionNotFound
from specdec.rules.params import FinishReason

_SESSION = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,8})")
_NOT_NOTED = {"base_len", "tokens", "finish", "draft_seconds", "queue_seconds", "verify_seconds"}


@dataclass(frozen=True, slots=True)
class Turn:
    """Which turn, and whose."""

    session_id: str
    tenant: str
    number: int
    """1 for the first."""

    @property
    def name(self) -> str:
        """What callers know the generation by."""
        return f"{self.session_id}-{self.number}"

    @classmethod
    def named(cls, name: str, tenant: str) -> "Turn":
        """The turn of that name.

        Raises:
            GenerationNotFound: nothing has such a name.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise GenerationNotFound("no such generation", "id")
        return cls(match[1], tenant, int(match[2]))


@dataclass(frozen=True, slots=True)
class Header:
    """What was settled when a turn began."""

    plan: Plan
    model: str
    system_fingerprint: str
    created: int
    """Unix seconds."""
    form: str = ""
    """How the door it came through writes answers; that door's own business."""
    in_session: bool = False
    """Whether the caller named the session."""
    resumable: bool = True
    """Whether the caller could come back to it."""
    choices: int = 1
    """Generations of the request it belongs to."""


_HEADER = TypeAdapter(Header)
_ROUND = TypeAdapter(VerifiedRound)


def check_session_id(name: str) -> str:
    """The name; raises SessionNotFound when no session has such a name."""
    if _SESSION.fullmatch(name) is None:
        raise SessionNotFound("no such session", "session")
    return name


def new_session_id() -> str:
    """A name that cannot be guessed."""
    return secrets.token_hex(16)


def session_id_for(tenant: str, key: str) -> str:
    """The session of a request that may come again: the same for the same tenant and key."""
    return hashlib.sha256(f"{len(tenant)}:{tenant}:{key}".encode()).hexdigest()[:32]


def choice_session_id(first: str, place: int) -> str:
    """The session of one of several choices, from that of the first, whose place is 0."""
    return hashlib.sha256(f"{first}:{place}".encode()).hexdigest()[:32] if place else first


def header_to_bytes(header: Header) -> bytes:
    """All of it but the prompt, which is in the log."""
    sampling = header.plan.sampling
    plain = replace(sampling, logit_bias=dict(sampling.logit_bias))  # a read-only view has no form in JSON
    plan = replace(header.plan, sampling=plain)
    return _HEADER.dump_json(replace(header, plan=plan), exclude={"plan": {"prompt"}})


def header_from_bytes(blob: bytes, prompt: tuple[int, ...]) -> Header:
    """The header whose prompt that is."""
    values = _LOOSE.validate_json(blob)
    values["plan"]["prompt"] = []
    found = _HEADER.validate_python(values)
    return replace(found, plan=replace(found.plan, prompt=prompt))


_LOOSE: TypeAdapter[dict[str, dict[str, object]]] = TypeAdapter(dict)


def note_of(verified: VerifiedRound) -> bytes:
    """What the log does not say of a round: where its tokens came from, what was drafted."""
    noted = _ROUND.dump_python(verified, exclude=_NOT_NOTED, exclude_defaults=True)
    return json.dumps(noted, separators=(",", ":")).encode()  # a log probability may be infinite, unlike in strict JSON


def round_from(stored: StoredRound, base_len: int) -> VerifiedRound:
    """The round as it was committed on top of `base_len` tokens."""
    values = json.loads(stored.note or b"{}")
    given = {"base_len": base_len, "tokens": stored.tokens, "origins": (), "finish": None} | values
    found = _ROUND.validate_python(given)
    return replace(found, finish=FinishReason(stored.finish) if stored.finish else None)

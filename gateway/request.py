"""What a caller asks for: one frozen value, whichever door it came through, and every limit that needs no model."""

import hashlib
import math
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.priority import PriorityClass
from specdec.errors import FieldInvalid, FieldRequired, TokenOutOfRange
from specdec.rules.params import MAX_SEED, Mode, SamplingParams, Speculation, check_logprobs

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_CHOICES = 16
MAX_NAME = 256
ANONYMOUS = "default"
"""The tenant of those who name no user."""
ROLES = ("system", "user", "assistant")

_MAX_ID = 2**31 - 1
_SEED_BITS = 53


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, used as given."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, put through the model's chat template."""

    messages: tuple[Message, ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt


def new_id() -> str:
    """A name for a generation that nobody else has."""
    return uuid.uuid4().hex


def random_seed() -> int:
    """A seed for a caller who gave none; small enough to survive a JSON number."""
    return secrets.randbits(_SEED_BITS)


def check_name(name: str, param: str) -> str:
    """The name a caller chose; raises FieldInvalid when it is longer than names are kept."""
    if len(name) > MAX_NAME:
        raise FieldInvalid(f"{param} must have at most {MAX_NAME} characters", param)
    return name


def tenant_of(user: str) -> str:
    """The tenant of a user; callers that name none are one tenant together. Raises FieldInvalid."""
    check_name(user, "user")
    return f"user:{user}" if user else ANONYMOUS


def cache_domain(tenant: str, salt: str) -> str:
    """Those who share computed prefixes: one tenant's callers of one salt; a tenant cannot name another's.

    Hashes of the tenant and, behind a dot, of the salt; each is empty where there is none.
    """
    whose = "" if tenant == ANONYMOUS else _short_hash(tenant)
    return f"{whose}.{_short_hash(salt)}" if salt else whose


def _short_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation; a value that exists is valid as far as can be told without the model.

    Raises:
        FieldRequired: no prompt.
        FieldInvalid: a field is out of range.
        TokenOutOfRange: a token id is negative or has more than 31 bits.
    """

    prompt: Prompt
    sampling: SamplingParams
    model: str = ""
    """Empty for the only one."""
    max_tokens: int | None = None
    """None takes the room left in the context."""
    cap_tokens: int | None = None
    """Like `max_tokens`, but gives way when the context has less room."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    mode: Mode | None = None
    """None takes the server's, or for a seeded request coupled mode."""
    seeded: bool = False
    """Whether the caller chose the seed, and so wants the same tokens again."""
    gamma: int | None = None
    """Draft length; None lets the verifier choose."""
    lenience: float = 1.0
    """ℓ in (0, 1]; 1 is exact."""
    logprobs: int | None = None
    """How many likely tokens are reported beside each of the output; None is no logprobs."""
    n: int = 1
    """Generations of this prompt; the i-th, from 0 on, has the seed i higher."""
    request_id: str = field(default_factory=new_id)
    idempotency_key: str = ""
    """The same key asks for the same generation, however often it comes; empty for a new one each time."""
    user: str = ""
    """On whose behalf; what is one user's is not there for another."""
    session: str = ""
    """The session to continue; empty for one of its own."""
    expect_turn: int | None = None
    """Turns the session must have had before; None takes it as it is."""
    priority: PriorityClass = PriorityClass.DEFAULT
    cache_salt: str = ""
    """Narrows who shares what has been computed of a prefix, within the user."""
    form: str = ""
    """How the answer is to be written, kept for whoever resumes it."""
    resumable: bool = True
    """Whether the caller could come back: it has a key, or learns the generation's name before its end."""

    @property
    def tenant(self) -> str:
        """Whose sessions the request may touch."""
        return tenant_of(self.user)

    @property
    def digest(self) -> str:
        """Equal for requests that ask for the same; a seed drawn for the caller is not part of what was asked."""
        sampling = self.sampling if self.seeded else replace(self.sampling, seed=0)
        asked = replace(self, sampling=sampling, request_id="", idempotency_key="", form="", resumable=True)
        return hashlib.sha256(repr(asked).encode()).hexdigest()[:32]

    def __post_init__(self) -> None:
        check_prompt(self.prompt)
        check_name(self.user, "user")
        check_name(self.idempotency_key, "request_id")
        check_name(self.cache_salt, "cache_salt")
        _check_stops(self.stop)
        check_ids(self.stop_token_ids, "stop_token_ids")
        for name, ids in self.sampling.named_ids.items():
            check_ids(tuple(ids), name)
        check_logprobs(self.logprobs)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise FieldInvalid(f"max_tokens must be at least 1, got {self.max_tokens}", "max_tokens")
        limit = self.max_tokens if self.max_tokens is not None else self.cap_tokens
        if self.sampling.min_tokens > (math.inf if limit is None else limit):
            raise FieldInvalid(
                f"min_tokens must not be over max_tokens, got {self.sampling.min_tokens} and {limit}", "min_tokens"
            )
        Speculation(gamma=self.gamma, lenience=self.lenience)
        if not 1 <= self.n <= MAX_CHOICES:
            raise FieldInvalid(f"n must be in 1..{MAX_CHOICES}, got {self.n}", "n")
        if self.session and self.n > 1:
            raise FieldInvalid("a session takes one choice a turn", "n")

    def choices(self) -> "tuple[GenerationRequest, ...]":
        """The request with the seed of each of its generations."""
        seeds = [(self.sampling.seed + place) % (MAX_SEED + 1) for place in range(self.n)]
        return tuple(replace(self, sampling=replace(self.sampling, seed=seed)) for seed in seeds)


def check_ids(ids: Sequence[int], param: str, limit: int = _MAX_ID + 1) -> None:
    """Raise TokenOutOfRange unless every id is in [0, limit)."""
    for index, token in enumerate(ids):
        if not 0 <= token < limit:
            raise TokenOutOfRange(f"{param}[{index}]: token id {token} is not in [0, {limit})", param)


def check_prompt(prompt: Prompt) -> None:
    """Raise FieldRequired, FieldInvalid or TokenOutOfRange unless there is something to go on from."""
    match prompt:
        case TextPrompt(text):
            if not text:
                raise FieldRequired("prompt must not be empty", "prompt")
        case TokenPrompt(tokens):
            if not tokens:
                raise FieldRequired("prompt must not be empty", "prompt")
            check_ids(tokens, "prompt")
        case ChatPrompt(messages):
            _check_messages(messages)


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise FieldRequired("messages must not be empty", "messages")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise FieldInvalid(
                f"messages[{index}].role must be one of {', '.join(ROLES)}, got {message.role!r}",
                f"messages[{index}].role",
            )


def _check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOPS:
        raise FieldInvalid(f"stop takes at most {MAX_STOPS} strings, got {len(stops)}", "stop")
    if not all(stops):
        raise FieldInvalid("stop must not hold an empty string", "stop")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise FieldInvalid(f"a stop string has at most {MAX_STOP_CHARS} characters", "stop")

"""Who calls: the API key that a call was let in with, and whose sessions the call may touch.

The key of a call is known to the asyncio task that serves the call, so that the doors for HTTP and gRPC set it once and
every endpoint finds it. From there on it is passed on as a value.
"""

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from gateway.callers.priority import PriorityClass
from gateway.fair_queue import Share
from specdec.errors import FieldInvalid, PriorityNotAllowed

MAX_NAME = 256
"""Most characters of a name that a caller chooses."""
ANONYMOUS = "default"
"""The tenant of all callers that have no key and name no user."""
_KEYED = "key:"
_USER = " user:"
"""What stands between a key's tenant, which has no spaces, and the user that the caller names."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key, without the key itself."""

    tenant: str
    """Whose key it is."""
    id: str
    """What names the key in logs and in the session store: the first half of its SHA-256, in hexadecimal."""
    requests: int | None = None
    """Requests a minute; None for no limit."""
    tokens: int | None = None
    """Tokens a minute, of prompts and outputs together; None for no limit."""
    concurrency: int | None = None
    """Requests at once; None for no limit."""
    priority: PriorityClass = PriorityClass.DEFAULT
    """The best priority class that the key may ask for."""

    @property
    def limited(self) -> bool:
        """Whether anything is counted for this key."""
        return bool(self.requests or self.tokens or self.concurrency)


_CLIENT: ContextVar[str] = ContextVar("client", default="")
_CALLING: ContextVar[ApiKey | None] = ContextVar("api_key", default=None)


def called_from(host: str) -> None:
    """Set the address from which the call of this task comes; of IPv6, a host has a whole network of 64 bits."""
    try:
        address = ip_address(host)
    except ValueError:
        _CLIENT.set(host)
        return
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or ip_network((address, 64), strict=False).network_address
    _CLIENT.set(str(address))


def calling_key() -> ApiKey | None:
    """The key that the call of this task was let in with; None where no keys are asked for."""
    return _CALLING.get()


def let_in(key: ApiKey) -> None:
    """Set the key of this task's call."""
    _CALLING.set(key)


def tenant_name(user: str, key: ApiKey | None) -> str:
    """Whose sessions a call may touch: those of one user of the key's tenant; without a key, those of the user.

    What a caller says of itself never leads out of the tenant of its key.
    """
    if key is None:
        return f"user:{user}" if user else ANONYMOUS
    return f"{_KEYED}{key.tenant}{_USER}{user}" if user else f"{_KEYED}{key.tenant}"


def check_name(name: str, param: str) -> str:
    """A name that a caller chose; raises FieldInvalid when it has over MAX_NAME characters."""
    if len(name) > MAX_NAME:
        raise FieldInvalid(f"{param} must have at most {MAX_NAME} characters", param)
    return name


def tenant_of(user: str, key: ApiKey | None = None) -> str:
    """Whose sessions a caller with that key may touch when it names that user. Raises FieldInvalid."""
    return tenant_name(check_name(user, "user"), key)


def calling_tenant(user: str = "") -> str:
    """Whose sessions the call of this task may touch when it names that user. Raises FieldInvalid."""
    return tenant_of(user, calling_key())


def allowed_priority(asked: PriorityClass, key: ApiKey | None, param: str) -> PriorityClass:
    """The class of a request: as asked, but for a key that is always last, whose requests need not say so.

    Raises:
        PriorityNotAllowed: the key may not go before others as the field `param` asks.
    """
    if key is None or asked.level >= key.priority.level:
        return asked
    if asked is PriorityClass.DEFAULT:
        return key.priority
    raise PriorityNotAllowed(f"{param}: this API key may ask for {key.priority} at best, not for {asked}", param)


def share_of(tenant: str) -> str:
    """Who shares memory: with keys, all users of a key's tenant together; without, each user alone."""
    return tenant.partition(_USER)[0] if tenant.startswith(_KEYED) else tenant


def place_share(tenant: str) -> Share:
    """Who gets places and time in turn with others, for the call of this task.

    With keys that is the tenant of a key. Without, callers are told apart by their addresses, and those of one address
    by the users that they name: who makes up users shares the places of one address.
    """
    share = share_of(tenant)
    return Share(share) if tenant.startswith(_KEYED) else Share(_CLIENT.get(), share)


def cache_domain(tenant: str, salt: str) -> str:
    """The name under which computed prefixes are shared: by requests of one tenant with one salt, and by nobody else.

    It is a hash of the share and, behind a dot, a hash of the user and the salt. ANONYMOUS, no user and an empty salt
    have no hash.
    """
    share = share_of(tenant)
    owner = "" if tenant == ANONYMOUS else _short_hash(share)
    inner = salt if share == tenant else _short_hash(tenant) + salt
    return f"{owner}.{_short_hash(inner)}" if inner else owner


def _short_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]

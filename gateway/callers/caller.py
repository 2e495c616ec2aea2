"""Caller identity: the API key of a call, and the tenant whose sessions the call may use.

A context variable of the asyncio task that serves the call holds the key. The HTTP and gRPC doors set it once, and
endpoints read it and pass it on as a value.
"""

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple

from specdec.errors import FieldInvalid, PriorityNotAllowed
from specdec.rules.blocks import adapter_end

MAX_NAME = 256
"""Most characters of a name that a caller chooses."""
ANONYMOUS = "default"
"""The tenant of all callers that have no key and name no user."""
_KEYED = "key:"
_USER = " user:"
"""Separator between the key's tenant, which has no spaces, and the user named by the caller."""
_CLIENT: ContextVar[str] = ContextVar("client", default="")


class PriorityClass(StrEnum):
    """Priority classes, named like OpenAI's service tiers."""

    FLEX = "flex"
    DEFAULT = "default"
    PRIORITY = "priority"

    @property
    def level(self) -> int:
        """Priority in a verifier's queue; lower goes first. A long wait raises a generation above later ones."""
        return {PriorityClass.FLEX: 1, PriorityClass.DEFAULT: 0, PriorityClass.PRIORITY: -1}[self]


class Share(NamedTuple):
    """Holder of places: a client, or one of its users."""

    client: str
    user: str = ""
    """User of the client; users get places in rotation. Empty if the client's users are not distinguished."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Properties of an API key, without the secret itself."""

    tenant: str
    """Owner of the key."""
    id: str
    """Identifier in logs and in the session store: the first half of the key's SHA-256, in hexadecimal."""
    requests: int | None = None
    """Most requests per minute; None for no limit."""
    tokens: int | None = None
    """Most tokens per minute, prompts and outputs together; None for no limit."""
    concurrency: int | None = None
    """Most concurrent requests; None for no limit."""
    priority: PriorityClass = PriorityClass.DEFAULT
    """The best priority class that the key may ask for."""

    @property
    def limited(self) -> bool:
        """Whether the key has any limit."""
        return bool(self.requests or self.tokens or self.concurrency)


_CALLING: ContextVar[ApiKey | None] = ContextVar("api_key", default=None)


def called_from(host: str) -> None:
    """Set the client address of this task's call."""
    _CLIENT.set(network_of(host))


def network_of(host: str) -> str:
    """Return a client address; an IPv6 address is reduced to its /64 network."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or ip_network((address, 64), strict=False).network_address
    return str(address)


def calling_key() -> ApiKey | None:
    """Return the API key of this task's call; None if the gateway requires no keys."""
    return _CALLING.get()


def let_in(key: ApiKey) -> None:
    """Set the key of this task's call."""
    _CALLING.set(key)


def tenant_name(user: str, key: ApiKey | None) -> str:
    """Return the tenant of a call: one user of the key's tenant or, without a key, the user.

    The user name, which the caller chooses, cannot reach sessions outside the key's tenant.
    """
    if key is None:
        return f"user:{user}" if user else ANONYMOUS
    return f"{_KEYED}{key.tenant}{_USER}{user}" if user else f"{_KEYED}{key.tenant}"


def check_name(name: str, param: str) -> str:
    """Return the name; raises FieldInvalid if it has more than MAX_NAME characters."""
    if len(name) > MAX_NAME:
        raise FieldInvalid(f"{param} must have at most {MAX_NAME} characters", param)
    return name


def tenant_of(user: str, key: ApiKey | None = None) -> str:
    """Return the tenant of a caller with this key and user name. Raises FieldInvalid."""
    return tenant_name(check_name(user, "user"), key)


def calling_tenant(user: str = "") -> str:
    """Return the tenant of this task's call with this user name. Raises FieldInvalid."""
    return tenant_of(user, calling_key())


def allowed_priority(asked: PriorityClass, key: ApiKey | None, param: str) -> PriorityClass:
    """Return the priority class of a request; the default class is lowered to the key's best class.

    Raises:
        PriorityNotAllowed: the field `param` asks for a better class than the key allows.
    """
    if key is None or asked.level >= key.priority.level:
        return asked
    if asked is PriorityClass.DEFAULT:
        return key.priority
    raise PriorityNotAllowed(f"{param}: this API key may ask for {key.priority} at best, not for {asked}", param)


def key_tenant(tenant: str) -> str:
    """Return the tenant of the key that a tenant calls with; empty without keys. User names are not in it."""
    return share_of(tenant).removeprefix(_KEYED) if tenant.startswith(_KEYED) else ""


def share_of(tenant: str) -> str:
    """Return the group that shares memory: the key's whole tenant or, without keys, the user."""
    return tenant.partition(_USER)[0] if tenant.startswith(_KEYED) else tenant


def place_share(tenant: str) -> Share:
    """Return the share of this task's call in the fair queue.

    With keys, the client is the key's tenant. Without keys, the client is the caller's address, with the named user
    as its user. A caller that invents user names therefore shares the places of one address.
    """
    share = share_of(tenant)
    return Share(share) if tenant.startswith(_KEYED) else Share(_CLIENT.get(), share)


def pseudonyms(share: Share) -> Share:
    """Return hashes of a share's names, to tell callers apart without their names; an empty name stays empty."""
    return Share(*(name and _short_hash(name) for name in share))


def cache_domain(tenant: str, salt: str, adapter: str = "") -> str:
    """Return the prefix cache domain. Only requests of one tenant, salt and adapter share cached prefixes.

    The format is a hash of the share, followed by a dot and a hash of the user and the salt. ANONYMOUS has an empty
    first part; without a user and a salt, the dot and the second part are absent. With an adapter, a further dot and a
    hash of its fingerprint follow, so that no salt gives the domain of another adapter.
    """
    share = share_of(tenant)
    owner = "" if tenant == ANONYMOUS else _short_hash(share)
    inner = salt if share == tenant else _short_hash(tenant) + salt
    domain = f"{owner}.{_short_hash(inner) if inner else ''}"
    return domain + adapter_end(adapter) if adapter else domain.rstrip(".")


def _short_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]

"""Authentication between services: certificates for mutual TLS, and a shared token."""

import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import grpc
import grpc.aio
import structlog
from pydantic import AfterValidator, SecretStr

from specdec.serving.rpc.tls import Certificates, TlsSettings

_HEADER = "authorization"

Handler = Any
Metadata = tuple[tuple[str, str], ...]

_log = structlog.get_logger()


def _check_token(token: SecretStr) -> SecretStr:
    """Return the token if a header can hold it. Otherwise raise a ValueError that does not repeat it."""
    if not re.fullmatch(r"[\x21-\x7e]*", token.get_secret_value()):
        raise ValueError("must be of printable ASCII characters without spaces and line ends")
    return token


Token = Annotated[SecretStr, AfterValidator(_check_token)]
"""A token; empty for none."""
NO_TOKEN = SecretStr("")


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials that a process presents to other services and requires of them. Without any, all calls pass."""

    certificates: Certificates | None = None
    token: SecretStr = NO_TOKEN
    door: grpc.aio.ServerInterceptor | None = None
    """Further interceptor that admits or refuses calls, besides the token."""
    observer: grpc.aio.ServerInterceptor | None = None
    """Interceptor that observes callers."""

    @classmethod
    def of(cls, tls: TlsSettings, token: SecretStr) -> "Access":
        """Create the access that the settings define. Raises ConfigError if a file cannot be read."""
        return cls(Certificates.of(tls), token)

    @property
    def doors(self) -> Sequence[grpc.aio.ServerInterceptor]:
        """Interceptors that a call must pass before its messages are read."""
        token = (TokenInterceptor(self.token),) if self.token else ()
        return (*token, *filter(None, (self.observer, self.door)))

    @property
    def metadata(self) -> Metadata:
        """Metadata of a call to another service."""
        return ((_HEADER, _bearer(self.token)),) if self.token else ()


class DoorInterceptor(grpc.aio.ServerInterceptor, ABC):
    """Refuses calls before their messages are read. Health checks are always allowed."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        if not handler_call_details.method.startswith("/grpc.health.v1.Health/"):
            metadata = handler_call_details.invocation_metadata or ()
            refuse = self.refusal([value for name, value in metadata if name == _HEADER])
            if refuse is not None:
                return grpc.stream_stream_rpc_method_handler(_refusing(refuse))
        return await continuation(handler_call_details)

    @abstractmethod
    def refusal(self, given: Sequence[str | bytes]) -> Handler | None:
        """Return a handler that refuses a call with these `authorization` values, or None to admit it."""


class TokenInterceptor(DoorInterceptor):
    """Refuses calls without the token as UNAUTHENTICATED."""

    def __init__(self, token: SecretStr) -> None:
        self._expected = _bearer(token).encode()

    def refusal(self, given: Sequence[str | bytes]) -> Handler | None:
        # A constant-time comparison does not reveal where the tokens differ.
        is_shown = len(given) == 1 and hmac.compare_digest(_bytes(given[0]), self._expected)
        return None if is_shown else _refuse


UNGUARDED = Access()
"""No token and no certificates."""


def _bearer(token: SecretStr) -> str:
    return f"Bearer {token.get_secret_value()}"


def _bytes(value: str | bytes) -> bytes:
    return value.encode(errors="replace") if isinstance(value, str) else value


def _refusing(refuse: Handler) -> Handler:
    """Return a stream handler, as other interceptors expect, that only refuses the call."""

    async def refused(requests: Any, context: Any) -> AsyncIterator[Any]:
        await refuse(requests, context)
        return
        yield

    return refused


async def _refuse(requests: Any, context: Any) -> None:
    _log.info("call_unauthenticated", peer=context.peer())
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the call does not carry the token of this service")

"""Charges a request to its API key: reserves tokens at the start and settles the actual use once at the end."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from gateway.callers.caller import ApiKey
from gateway.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt, new_id
from gateway.store.limits import Limits
from gateway.turns.events import Event, Finished, OutputRound, Started
from gateway.turns.services import Services
from specdec.errors import SpecdecError

_BYTES_A_TOKEN = 4
"""Estimated bytes per token, for texts that are not tokenized yet."""


class Charge:
    """Charge of one request with all its choices. This base class, for callers without a key, charges nothing."""

    repeated = False
    """Whether the request repeats an earlier one and therefore costs nothing."""

    async def counted(self, event: Event) -> Event:
        """Count an event of the request and return it. The charge is settled before the last event returns."""
        return event

    def fail(self) -> None:
        """Note that the request failed and will not continue."""

    async def settle(self) -> None:
        """Replace the reservation with the actual use. Further calls do nothing."""


class KeyCharge(Charge):
    """The charge of a request with a key."""

    def __init__(self, limits: Limits, key: ApiKey, request: GenerationRequest) -> None:
        self._limits = limits
        self._key = key
        self._id = new_id()
        self._taken = min(tokens_asked(request), key.tokens or 0)
        self._headers: Mapping[str, str] = {}
        self._running = request.number
        self._prompt = 0
        self._asked = 0
        """Most tokens that the request may use, prompt and output; 0 until it has started."""
        self._outputs: Counter[int] = Counter()
        """Output tokens, by choice."""
        self._failed = False
        self._settling: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Reserve the request's tokens; raises RateLimited and SessionStoreDown."""
        self._headers = (await self._limits.enter(self._key, self._id, self._taken)).headers

    async def counted(self, event: Event) -> Event:
        match event:
            case Started():
                self._prompt = event.prompt_tokens
                self._asked = self._prompt + self._running * event.header.call.max_tokens
                return replace(event, limits=self._headers)
            case OutputRound():
                self._outputs[event.choice] += len(event.tokens)
            case Finished():
                self._outputs[event.choice] = event.completion_tokens
                self._running -= 1
                if not self._running:
                    await self.settle()
        return event

    def fail(self) -> None:
        self._failed = True

    async def settle(self) -> None:
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle())
        await asyncio.shield(self._settling)

    async def _settle(self) -> None:
        """Return the unused tokens to the key.

        A request whose reader left early may continue and can be read again for free. It is therefore charged its
        maximum, where the unread part counts at most one minute's tokens.
        """
        used = self._prompt + self._outputs.total()
        if self._running and not self._failed:
            used = max(used, min(self._asked, self._key.tokens or 0))
        if self.repeated:
            used = 0
        await self._limits.leave(self._key, self._id, int(self.repeated), self._taken - used)


@asynccontextmanager
async def charged(services: Services, request: GenerationRequest) -> AsyncIterator[Charge]:
    """Charge a request to its key inside the context; unused tokens are returned at the end.

    Raises:
        RateLimited: a limit of the key is used up.
        SessionStoreDown: the limits cannot be read.
    """
    if request.key is None or services.limits is None or not request.key.limited:
        yield Charge()
        return
    charge = KeyCharge(services.limits, request.key, request)
    await charge.begin()
    try:
        yield charge
    except SpecdecError:
        charge.fail()
        raise
    finally:
        await charge.settle()


def tokens_asked(request: GenerationRequest) -> int:
    """Return an estimate, made before tokenization, of the most tokens that a request may need."""
    longest = request.max_tokens if request.max_tokens is not None else request.cap_tokens
    return sum(map(_prompt_tokens, request.prompts)) + request.number * (longest or 0)


def _prompt_tokens(prompt: Prompt) -> int:
    match prompt:
        case TokenPrompt(tokens):
            return len(tokens)
        case TextPrompt(text):
            size = len(text.encode(errors="replace"))
        case ChatPrompt(messages):
            size = sum(len(message.content.encode(errors="replace")) for message in messages)
    return -(-size // _BYTES_A_TOKEN)

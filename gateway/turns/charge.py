"""What a request costs its API key: counted when it begins, settled when it ends, and never twice."""

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
"""Bytes of a text that count as one token before it is tokenized."""


class Charge:
    """The charge of one request with all its choices; this one, for callers without a key, is nothing."""

    repeated = False
    """Whether the request was made before, so that this time it costs nothing."""

    async def counted(self, event: Event) -> Event:
        """Count an event of the request; the charge is settled before the last one is passed on."""
        return event

    def fail(self) -> None:
        """Note that the request has failed, so that it does not go on."""

    async def settle(self) -> None:
        """Count what the request has used and nothing else, once."""


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
        """Tokens that it may have in the end; 0 until it has started."""
        self._outputs: Counter[int] = Counter()
        """Output tokens, by choice."""
        self._failed = False
        self._settling: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Count the request; raises RateLimited and SessionStoreDown."""
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
        """Give back what was not used.

        A request whose reader left early may go on, and be read again for nothing: it costs all that it may have, but
        for what was not read never more than a minute's tokens.
        """
        used = self._prompt + self._outputs.total()
        if self._running and not self._failed:
            used = max(used, min(self._asked, self._key.tokens or 0))
        if self.repeated:
            used = 0
        await self._limits.leave(self._key, self._id, int(self.repeated), self._taken - used)


@asynccontextmanager
async def charged(services: Services, request: GenerationRequest) -> AsyncIterator[Charge]:
    """Count a request against the limits of its key; what it has not used is given back at the end.

    Raises:
        RateLimited: the key has used up a limit.
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
    """How many tokens a request may need, as far as that is known before its prompt is tokenized."""
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

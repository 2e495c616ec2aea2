"""Prompts to token ids for every caller: what cannot fit is refused first, and long prompts never delay short ones."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from gateway.callers.caller import place_share
from gateway.fair_queue import FairQueue
from gateway.request import GenerationRequest, Prompt, TextPrompt, TokenPrompt
from gateway.text.fit import check_count, check_fits, memory_of
from gateway.text.tokenizer import ModelTokenizer
from specdec.errors import ContextLengthExceeded
from specdec.sampling.params import check_ids
from specdec.wire.generation import VerifierInfo

_Result = TypeVar("_Result")

_SHORT = 16 * 1024
"""Largest memory of a short prompt, in bytes; it is tokenized in a tenth of a second."""
_SHORT_CAPACITY = 4 * 2**20
_LONG_CAPACITY = 4 * 2**20
"""Memory of the prompts that may wait in each lane, in bytes."""
_BEFORE_OUTPUT = (0,)
"""Any token: output is always behind some."""
_TOKEN_MEMORY = 8
"""What a token id holds in a tuple, in bytes."""
LEAST_SIZE = 512
"""What the smallest piece of work counts, in bytes, so that the number of pieces is bounded, too."""


class TokenizingLane:
    """A thread with a bounded queue, which serves tenants in turn, so that no tenant's flood delays another's request.

    It belongs to one event loop.
    """

    def __init__(self, name: str, capacity: int) -> None:
        """Let work of up to `capacity` bytes wait; work that nothing else waits before may be larger."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._queue = FairQueue(name, 1, capacity)

    async def run(self, tenant: str, size: int, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, which goes on to its end on the thread when the caller is cancelled.

        Args:
            size: the memory it holds while it waits, in bytes.

        Raises:
            QueueFull: the queue, or the tenant's share of it, is full.
        """
        share = place_share(tenant)
        await self._queue.enter(share, size=max(size, LEAST_SIZE))
        done = asyncio.get_running_loop().run_in_executor(self._threads, work)
        done.add_done_callback(lambda _: self._queue.leave(share))
        return await asyncio.shield(done)


class PromptEncoder:
    """Encodes and decodes on two threads, one for short texts and one for long ones."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self._short = TokenizingLane("short prompts", _SHORT_CAPACITY)
        self._long = TokenizingLane("long prompts", _LONG_CAPACITY)

    def check(self, request: GenerationRequest, context_length: int) -> None:
        """Raise ContextLengthExceeded when a prompt, used whole, cannot fit the context, whatever it continues."""
        if request.truncate_prompt is None:
            for prompt in request.prompts:
                check_fits(prompt, context_length, self._tokenizer.longest_token)

    async def encode_request(
        self, request: GenerationRequest, context_length: int, history: Sequence[int]
    ) -> tuple[int, ...]:
        """As `encode`, for the prompt of a request, which may use only its last tokens."""
        prompt, keep, room = request.prompt, request.truncate_prompt, context_length - len(history)
        if keep is None:
            return await self.encode(prompt, request.tenant, context_length, history)
        if keep == -1:
            keep = max(1, room - (request.max_tokens or 1))
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens[-keep:]
        work = partial(self._tokenizer.encode_last, prompt, history, keep)
        return await self._run(request.tenant, memory_of(prompt), work)

    async def encode(
        self, prompt: Prompt, tenant: str, context_length: int, history: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The token ids of a prompt, or those that it adds behind `history`.

        Args:
            prompt: what is to be tokenized; the ids of a TokenPrompt are returned without change.
            context_length: the model's longest sequence, in tokens.

        Raises:
            ContextLengthExceeded: the prompt does not fit the context.
            QueueFull: too many prompts wait.
            UnsupportedParameter: the prompt is a chat, and the model has no chat template for it.
            FieldInvalid: the chat template refuses the messages.
        """
        room = context_length - len(history)
        check_fits(prompt, room, self._tokenizer.longest_token)
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens
        work = partial(self._tokenizer.encode_after, prompt, history, room)
        return await self._run(tenant, memory_of(prompt), work)

    async def encode_prediction(self, text: str, tenant: str, context_length: int) -> tuple[int, ...]:
        """The token ids of a text that is expected as output, without those that a prompt begins with.

        Raises:
            ContextLengthExceeded: it is longer than any output.
            QueueFull: too many prompts wait.
        """
        if not text:
            return ()
        prompt = TextPrompt(text)
        try:
            check_fits(prompt, context_length, self._tokenizer.longest_token)
            encode = partial(self._tokenizer.encode_after, prompt, _BEFORE_OUTPUT, context_length)
            return await self._run(tenant, memory_of(prompt), encode)
        except ContextLengthExceeded as error:
            raise ContextLengthExceeded("prediction is longer than the model's context", "prediction") from error

    async def encode_words(self, words: Sequence[str], tenant: str) -> tuple[tuple[int, ...], ...]:
        """The token ids of each word, alone and after a space; raises QueueFull when too much waits."""
        if not words:
            return ()
        return await self._run(tenant, sum(map(len, words)), partial(self._tokenizer.encode_words, words))

    async def decode(self, tokens: Sequence[int], tenant: str, param: str, info: VerifierInfo) -> str:
        """The text of token ids that a caller sent in the field `param`.

        Raises:
            ContextLengthExceeded: they are more than the model's context has.
            TokenOutOfRange: an id is not in the vocabulary.
            QueueFull: too much waits.
        """
        check_count(len(tokens), info.context_length, param)
        check_ids(tokens, param, info.vocab_size)
        return await self._run(tenant, _TOKEN_MEMORY * len(tokens), partial(self._tokenizer.decode, tokens))

    async def _run(self, tenant: str, size: int, work: Callable[[], _Result]) -> _Result:
        return await (self._short if size <= _SHORT else self._long).run(tenant, size, work)

"""Tokenizes prompts of all callers. Prompts that cannot fit are refused first; long ones never delay short ones."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from gateway.admission import FairThreads
from gateway.callers.caller import place_share
from gateway.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from gateway.text.tokenizer import ModelTokenizer
from specdec.errors import ContextLengthExceeded
from specdec.sampling.params import check_ids
from specdec.wire.generation import VerifierInfo

_ID_MEMORY = 36
"""Memory of a token id in bytes: an integer and its slot in a tuple."""
_Result = TypeVar("_Result")
_QUICK = 512
"""Largest memory, in bytes, of a text that is tokenized on the event loop, in about a quarter of a millisecond."""
_SHORT = 16 * 1024
"""Largest memory of a short prompt, in bytes; tokenization takes at most about 0.1 s."""
_CAPACITY = 4 * 2**20
"""Most memory, in bytes, of the prompts that wait for each of the two threads."""
_BEFORE_OUTPUT = (0,)
"""Arbitrary token that stands for the tokens before the output."""
_TOKEN_MEMORY = 8
"""Memory of a token id in a tuple, in bytes."""
_SIDE_TEXTS = 2**20
"""Most characters of names, ids and thinking in a conversation, if the context has no room for more."""
_LEAST_SIZE = 512
"""Least size, in bytes, counted per waiting text, which also bounds the number of texts."""


def check_fits(prompt: Prompt, room: int, longest_token: int) -> None:
    """Refuse a prompt that must exceed `room` tokens; an accepted prompt may still be too long.

    A text is refused even if a tokenizer that drops characters would produce fewer tokens.

    Args:
        prompt: prompt to check.
        room: free tokens in the context.
        longest_token: length in bytes of the vocabulary's longest token.

    Raises:
        ContextLengthExceeded: the prompt cannot fit; `param` is its field.
    """
    match prompt:
        case TokenPrompt(tokens):
            check_count(len(tokens), room, "prompt")
        case TextPrompt(text):
            _check_bytes(_byte_length(text), room, longest_token, "prompt")
        case ChatPrompt(messages):
            check_count(len(messages), room, "messages", "messages")
            size = sum(_byte_length(text) for text in _texts(prompt))
            _check_bytes(size, room, longest_token, "messages")
            if sum(map(len, _side_texts(prompt))) > max(room * longest_token, _SIDE_TEXTS):
                raise ContextLengthExceeded("messages have too long names, ids, thinking and documents", "messages")


def memory_of(prompt: Prompt) -> int:
    """Return the memory of a prompt's texts or token ids, in bytes."""
    match prompt:
        case TokenPrompt(tokens):
            return len(tokens) * _ID_MEMORY
        case TextPrompt(text):
            return sys.getsizeof(text)
        case ChatPrompt():
            return sum(map(sys.getsizeof, chain(_texts(prompt), _side_texts(prompt))))


def _texts(prompt: ChatPrompt) -> Iterator[str]:
    """Yield every text of a conversation that the chat template includes."""
    for message in prompt.messages:
        yield message.content
        yield from (call.arguments for call in message.tool_calls)
    for tool in prompt.tools:
        yield tool.description
        yield tool.parameters


def _side_texts(prompt: ChatPrompt) -> Iterator[str]:
    """Yield every text of a conversation that only some chat templates include."""
    for message in prompt.messages:
        yield from (message.name, message.tool_call_id, message.reasoning)
        for call in message.tool_calls:
            yield from (call.id, call.name)
    for document in prompt.documents:
        yield from document.values()


def request_memory(request: GenerationRequest) -> int:
    """Return the memory of a request's prompts and prediction, in bytes."""
    return sum(map(memory_of, request.prompts)) + memory_of(TextPrompt(request.prediction))


def _byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def check_count(count: int, room: int, param: str, what: str = "tokens") -> None:
    """Raise ContextLengthExceeded if `count` exceeds `room`; `what` names the counted items."""
    if count > room:
        raise ContextLengthExceeded(
            f"{param} has {count} {what}, and the model's context has room for {max(room, 0)} tokens", param
        )


def _check_bytes(size: int, room: int, longest_token: int, param: str) -> None:
    most = max(room, 0) * longest_token
    if size > most:
        raise ContextLengthExceeded(
            f"{param} has {size} bytes; the {max(room, 0)} tokens that the model's context has room for "
            f"are at most {most} bytes",
            param,
        )


class PromptEncoder:
    """Encodes and decodes on two threads, one for short and one for long texts; quick texts on the event loop."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self._threads = FairThreads("prompts", _CAPACITY, _SHORT)

    def check(self, request: GenerationRequest, context_length: int) -> None:
        """Raise ContextLengthExceeded if an untruncated prompt cannot fit the context, even without a history."""
        if request.truncate_prompt is None:
            for prompt in request.prompts:
                check_fits(prompt, context_length, self._tokenizer.longest_token)

    async def encode_request(
        self, request: GenerationRequest, context_length: int, history: Sequence[int]
    ) -> tuple[int, ...]:
        """Encode the prompt of a request like `encode`, and apply its truncation."""
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
        """Return the token ids that a prompt adds after `history`.

        Args:
            prompt: prompt to tokenize; the ids of a TokenPrompt are returned unchanged.
            tenant: caller, for fair queueing.
            context_length: the model's longest sequence, in tokens.
            history: tokens before the prompt.

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
        size = memory_of(prompt)
        if size <= _QUICK and isinstance(prompt, TextPrompt):  # a chat template may take any time
            return self._tokenizer.encode_after(prompt, history, room)
        return await self._run(tenant, size, partial(self._tokenizer.encode_after, prompt, history, room))

    async def encode_prediction(self, text: str, tenant: str, context_length: int) -> tuple[int, ...]:
        """Return the token ids of a predicted output, without the tokens that begin a prompt.

        Raises:
            ContextLengthExceeded: the prediction is longer than any output.
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
        """Return the token ids of each word, alone and after a space; raises QueueFull if the queue is full."""
        if not words:
            return ()
        return await self._run(tenant, sum(map(len, words)), partial(self._tokenizer.encode_words, words))

    async def decode(self, tokens: Sequence[int], tenant: str, param: str, info: VerifierInfo) -> str:
        """Return the text of token ids that a caller sent in the field `param`.

        Raises:
            ContextLengthExceeded: there are more ids than the model's context length.
            TokenOutOfRange: an id is not in the vocabulary.
            QueueFull: the queue is full.
        """
        check_count(len(tokens), info.context_length, param)
        check_ids(tokens, param, info.vocab_size)
        return await self._run(tenant, _TOKEN_MEMORY * len(tokens), partial(self._tokenizer.decode, tokens))

    async def written(self, tokens: Sequence[int], tenant: str) -> list[str]:
        """Return each token in the vocabulary's notation; raises QueueFull if the queue is full."""
        return await self._run(tenant, _TOKEN_MEMORY * len(tokens), partial(self._tokenizer.written, tokens))

    async def _run(self, tenant: str, size: int, work: Callable[[], _Result]) -> _Result:
        return await self._threads.run(place_share(tenant), work, max(size, _LEAST_SIZE))

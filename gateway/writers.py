"""From the events of a generation to the answers of the OpenAI API; one writer a request."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.events import Finished, Round, Started
from gateway.logprobs import Piece, chat_logprobs, completion_logprobs
from gateway.output import OutputToken
from gateway.replies import (
    Answer,
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChoice,
    Delta,
    DeltaChoice,
    Usage,
    metrics_of,
    report_of,
)


@dataclass(frozen=True, slots=True)
class Form:
    """What the caller wants to see."""

    piece: Piece
    include_usage: bool = False
    """Whether a stream ends with a chunk of counts."""
    token_ids: bool = False


class Writer(ABC):
    """Writes one generation, whole or chunk by chunk."""

    def __init__(self, started: Started, form: Form) -> None:
        self._started = started
        self._form = form

    @abstractmethod
    def whole(self, tokens: Sequence[OutputToken], finished: Finished) -> Answer:
        """The answer in one piece."""

    @abstractmethod
    def opening(self) -> Iterator[Answer]:
        """Chunks before the first round."""

    @abstractmethod
    def _piece(self, tokens: Sequence[OutputToken], finished: Finished | None) -> Answer:
        """A chunk with tokens, or with the end."""

    @abstractmethod
    def _counts(self, finished: Finished) -> Answer:
        """The chunk without choices that carries the counts."""

    def round(self, round: Round) -> Iterator[Answer]:
        """Chunks of one round; none when all of it is held back."""
        if round.tokens:
            yield self._piece(round.tokens, None)

    def closing(self, finished: Finished) -> Iterator[Answer]:
        """Chunks after the last round."""
        yield self._piece((), finished)
        if self._form.include_usage:
            yield self._counts(finished)

    def _head(self, prefix: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{self._started.id}",
            "created": self._started.created,
            "model": self._started.model,
            "system_fingerprint": self._started.system_fingerprint,
        }

    def _chunk_head(self, prefix: str, finished: Finished | None) -> dict[str, Any]:
        head = self._head(prefix)
        if self._form.include_usage:
            return head | {"usage": None}
        return head | self._report(finished) if finished else head

    def _report(self, finished: Finished) -> dict[str, Any]:
        """What the last piece of an answer says beside the output."""
        return {
            "metrics": metrics_of(finished.summary),
            "speculation": report_of(finished.summary),
            "seed": self._started.seed,
        }

    def _ids(self, tokens: Sequence[OutputToken]) -> dict[str, Any]:
        return {"token_ids": [token.id for token in tokens]} if self._form.token_ids else {}

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._started.prompt_tokens)} if self._form.token_ids else {}


class CompletionWriter(Writer):
    """/v1/completions."""

    _first = True
    _written = 0
    """Characters of text in the chunks before."""

    def whole(self, tokens: Sequence[OutputToken], finished: Finished) -> Completion:
        """The answer in one piece."""
        return Completion(
            **self._head("cmpl"),
            object="text_completion",
            choices=[self._choice(tokens, finished)],
            usage=usage_of(finished),
            **self._report(finished),
        )

    def opening(self) -> Iterator[Answer]:
        """Nothing: the first chunk has text."""
        return iter(())

    def _piece(self, tokens: Sequence[OutputToken], finished: Finished | None) -> Completion:
        head = self._chunk_head("cmpl", finished)
        return Completion(**head, object="text_completion", choices=[self._choice(tokens, finished)])

    def _counts(self, finished: Finished) -> Completion:
        return Completion(
            **self._head("cmpl"),
            object="text_completion",
            choices=[],
            usage=usage_of(finished),
            **self._report(finished),
        )

    def _choice(self, tokens: Sequence[OutputToken], finished: Finished | None) -> CompletionChoice:
        prompt_ids = self._prompt_ids() if self._first else {}
        self._first = False
        text, logprobs = _text(tokens), completion_logprobs(tokens, self._form.piece, self._written)
        self._written += len(text)
        return CompletionChoice(
            index=0, text=text, logprobs=logprobs, **_end(finished), **prompt_ids, **self._ids(tokens)
        )


class ChatWriter(Writer):
    """/v1/chat/completions."""

    def whole(self, tokens: Sequence[OutputToken], finished: Finished) -> ChatCompletion:
        """The answer in one piece."""
        message = AssistantMessage(role="assistant", content=_text(tokens), refusal=None)
        logprobs = chat_logprobs(tokens, self._form.piece)
        choice = ChatChoice(index=0, message=message, logprobs=logprobs, **_end(finished), **self._ids(tokens))
        return ChatCompletion(
            **self._head("chatcmpl"),
            object="chat.completion",
            choices=[choice],
            usage=usage_of(finished),
            **self._prompt_ids(),
            **self._report(finished),
        )

    def opening(self) -> Iterator[Answer]:
        """One chunk that says whose turn it is."""
        choice = DeltaChoice(
            index=0, delta=Delta(role="assistant", content=""), logprobs=None, finish_reason=None, **self._ids(())
        )
        yield ChatCompletionChunk(
            **self._chunk_head("chatcmpl", None), object="chat.completion.chunk", choices=[choice], **self._prompt_ids()
        )

    def _piece(self, tokens: Sequence[OutputToken], finished: Finished | None) -> ChatCompletionChunk:
        delta = Delta() if finished else Delta(content=_text(tokens))
        logprobs = chat_logprobs(tokens, self._form.piece)
        choice = DeltaChoice(index=0, delta=delta, logprobs=logprobs, **_end(finished), **self._ids(tokens))
        head = self._chunk_head("chatcmpl", finished)
        return ChatCompletionChunk(**head, object="chat.completion.chunk", choices=[choice])

    def _counts(self, finished: Finished) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            **self._head("chatcmpl"),
            object="chat.completion.chunk",
            choices=[],
            usage=usage_of(finished),
            **self._report(finished),
        )


def usage_of(finished: Finished) -> Usage:
    """Counts of a generation."""
    return Usage(
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        total_tokens=finished.prompt_tokens + finished.completion_tokens,
    )


def _text(tokens: Sequence[OutputToken]) -> str:
    return "".join(token.text for token in tokens)


def _end(finished: Finished | None) -> dict[str, Any]:
    if finished is None:
        return {"finish_reason": None}
    return {"finish_reason": finished.reason.value, "stop_reason": finished.matched_stop or None}

"""From the events of a request's generations to the answers of the OpenAI API; one writer a request."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.http.logprobs import Piece, chat_logprobs, completion_logprobs
from gateway.http.replies import (
    Answer,
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChoice,
    Delta,
    DeltaChoice,
    SessionRef,
    Usage,
    metrics_of,
    report_of,
)
from gateway.text.output import OutputToken
from gateway.turns.events import Finished, Round, Started
from gateway.turns.statistics import total


@dataclass(frozen=True, slots=True)
class Form:
    """What the caller wants to see."""

    piece: Piece
    include_usage: bool = False
    """Whether a stream ends with a chunk of counts."""
    token_ids: bool = False


@dataclass(slots=True)
class Output:
    """What one generation came to."""

    tokens: list[OutputToken] = field(default_factory=list)
    finished: Finished | None = None


class Writer(ABC):
    """Writes the generations of one request, whole or chunk by chunk."""

    def __init__(self, started: Started, form: Form) -> None:
        self._started = started
        self._form = form
        self._ended: list[Finished] = []

    @property
    def choices(self) -> int:
        """How many generations there are."""
        return self._started.choices

    @abstractmethod
    def whole(self, outputs: Sequence[Output]) -> Answer:
        """The answer in one piece, of every generation's whole output."""

    @abstractmethod
    def opening(self) -> Iterator[Answer]:
        """Chunks before the first round."""

    @abstractmethod
    def _piece(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> Answer:
        """A chunk with tokens, or with the end."""

    @abstractmethod
    def _counts(self, ended: Sequence[Finished]) -> Answer:
        """The chunk without choices that carries the counts."""

    def round(self, round: Round) -> Iterator[Answer]:
        """Chunks of one round; none when all of it is held back."""
        if round.tokens:
            yield self._piece(round.choice, round.tokens, None)

    def closing(self, finished: Finished) -> Iterator[Answer]:
        """Chunks after the last round of a generation."""
        yield self._piece(finished.choice, (), finished)
        self._ended.append(finished)
        if self._form.include_usage and len(self._ended) == self.choices:
            yield self._counts(self._ended)

    def _head(self, prefix: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{self._started.id}",
            "created": self._started.created,
            "model": self._started.model,
            "system_fingerprint": self._started.system_fingerprint,
            "service_tier": self._started.priority.value,
        }

    def _chunk_head(self, prefix: str, finished: Finished | None) -> dict[str, Any]:
        head = self._head(prefix)
        if self._form.include_usage:
            return head | {"usage": None}
        return head | self._report([finished]) if finished else head

    def _report(self, ended: Sequence[Finished]) -> dict[str, Any]:
        """What the last piece of an answer says beside the output."""
        summary = total([each.summary for each in ended])
        return {
            "metrics": metrics_of(summary),
            "speculation": report_of(summary),
            "seed": self._started.seed,
            **self._session(),
        }

    def _session(self) -> dict[str, Any]:
        started = self._started
        return {"session": SessionRef(id=started.session, turn=started.turn)} if started.session else {}

    def _ids(self, tokens: Sequence[OutputToken]) -> dict[str, Any]:
        return {"token_ids": [token.id for token in tokens]} if self._form.token_ids else {}

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._started.prompt_tokens)} if self._form.token_ids else {}


class CompletionWriter(Writer):
    """/v1/completions."""

    def __init__(self, started: Started, form: Form) -> None:
        super().__init__(started, form)
        self._written: dict[int, int] = {}
        """Characters of text in the chunks before, of each choice that has begun."""

    def whole(self, outputs: Sequence[Output]) -> Completion:
        """The answer in one piece."""
        ended = finished_of(outputs)
        return Completion(
            **self._head("cmpl"),
            object="text_completion",
            choices=[self._choice(place, each.tokens, each.finished) for place, each in enumerate(outputs)],
            usage=usage_of(ended),
            **self._report(ended),
        )

    def opening(self) -> Iterator[Answer]:
        """Nothing: the first chunk has text."""
        return iter(())

    def _piece(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> Completion:
        head = self._chunk_head("cmpl", finished)
        return Completion(**head, object="text_completion", choices=[self._choice(choice, tokens, finished)])

    def _counts(self, ended: Sequence[Finished]) -> Completion:
        return Completion(
            **self._head("cmpl"),
            object="text_completion",
            choices=[],
            usage=usage_of(ended),
            **self._report(ended),
        )

    def _choice(self, index: int, tokens: Sequence[OutputToken], finished: Finished | None) -> CompletionChoice:
        prompt_ids = {} if index in self._written else self._prompt_ids()
        start, text = self._written.get(index, 0), _text(tokens)
        self._written[index] = start + len(text)
        logprobs = completion_logprobs(tokens, self._form.piece, start)
        return CompletionChoice(
            index=index, text=text, logprobs=logprobs, **_end(finished), **prompt_ids, **self._ids(tokens)
        )


class ChatWriter(Writer):
    """/v1/chat/completions."""

    def whole(self, outputs: Sequence[Output]) -> ChatCompletion:
        """The answer in one piece."""
        ended = finished_of(outputs)
        return ChatCompletion(
            **self._head("chatcmpl"),
            object="chat.completion",
            choices=[self._choice(place, each.tokens, each.finished) for place, each in enumerate(outputs)],
            usage=usage_of(ended),
            **self._prompt_ids(),
            **self._report(ended),
        )

    def opening(self) -> Iterator[Answer]:
        """A chunk for each choice that says whose turn it is."""
        delta, head = Delta(role="assistant", content=""), self._chunk_head("chatcmpl", None)
        for index in range(self.choices):
            choice = DeltaChoice(index=index, delta=delta, logprobs=None, finish_reason=None, **self._ids(()))
            yield ChatCompletionChunk(**head, object="chat.completion.chunk", choices=[choice], **self._prompt_ids())

    def _piece(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> ChatCompletionChunk:
        delta = Delta() if finished else Delta(content=_text(tokens))
        logprobs = chat_logprobs(tokens, self._form.piece)
        piece = DeltaChoice(index=choice, delta=delta, logprobs=logprobs, **_end(finished), **self._ids(tokens))
        head = self._chunk_head("chatcmpl", finished)
        return ChatCompletionChunk(**head, object="chat.completion.chunk", choices=[piece])

    def _counts(self, ended: Sequence[Finished]) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            **self._head("chatcmpl"),
            object="chat.completion.chunk",
            choices=[],
            usage=usage_of(ended),
            **self._report(ended),
        )

    def _choice(self, index: int, tokens: Sequence[OutputToken], finished: Finished | None) -> ChatChoice:
        message = AssistantMessage(role="assistant", content=_text(tokens), refusal=None)
        logprobs = chat_logprobs(tokens, self._form.piece)
        return ChatChoice(index=index, message=message, logprobs=logprobs, **_end(finished), **self._ids(tokens))


def finished_of(outputs: Sequence[Output]) -> list[Finished]:
    """The ends of generations that have all ended."""
    return [each.finished for each in outputs if each.finished is not None]


def usage_of(ended: Sequence[Finished]) -> Usage:
    """Counts of a request's generations; their prompt counts once."""
    prompt, output = ended[0].prompt_tokens, sum(each.completion_tokens for each in ended)
    return Usage(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)


def _text(tokens: Sequence[OutputToken]) -> str:
    return "".join(token.text for token in tokens)


def _end(finished: Finished | None) -> dict[str, Any]:
    if finished is None:
        return {"finish_reason": None}
    return {"finish_reason": finished.reason.value, "stop_reason": finished.matched_stop or None}

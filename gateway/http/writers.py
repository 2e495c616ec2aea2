"""From the events of a request's generations to the answers of the HTTP API, whole or chunk by chunk."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel

from gateway.http.logprobs import chat_logprobs, completion_logprobs
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
)
from gateway.http.statistics import counts_of, metrics_of, report_of, usage_of
from gateway.text.output import OutputToken, text_of
from gateway.text.tokenizer import ModelTokenizer
from gateway.turns.events import Event, Finished, Output, OutputRound, Started
from gateway.turns.statistics import total
from specdec.wire.report import RoundReport


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Which answer the caller asked for, and what it shows; kept with the generation, for whoever resumes it."""

    chat: bool = False
    """Whether it is a chat completion; otherwise it is a completion."""
    include_usage: bool = False
    """Whether a stream ends with a chunk of token counts."""
    continuous_usage: bool = False
    """Whether every chunk of such a stream has the token counts so far."""
    token_ids: bool = False
    """Whether token ids are shown beside the text."""
    echo: bool = False
    """Whether the text of a completion begins with the prompt's."""

    def text(self) -> str:
        """The format as text, for `parse`."""
        return " ".join(["openai", *(each.name for each in fields(self) if getattr(self, each.name))])

    @classmethod
    def parse(cls, text: str) -> "AnswerFormat":
        """The format of a text; it is empty for a generation begun over gRPC: a completion with token ids."""
        if not text:
            return cls(token_ids=True)
        words = text.split()
        return cls(**{each.name: True for each in fields(cls) if each.name in words})


class Writer(ABC):
    """Writes the generations of one request; every request has a writer of its own."""

    id_prefix: str

    def __init__(self, started: Started, answer_format: AnswerFormat, tokenizer: ModelTokenizer) -> None:
        self._started = started
        self._format = answer_format
        self._tokenizer = tokenizer
        self._ended: list[Finished] = []
        self._committed: dict[int, int] = {}
        """Output tokens so far, by the index of each choice that has begun."""
        self._rounds: defaultdict[int, list[RoundReport]] = defaultdict(list)
        """Reports that are in no chunk yet, of each choice."""

    @property
    def choices(self) -> int:
        """How many generations the request has."""
        return self._started.header.choices

    @abstractmethod
    def whole(self, outputs: Sequence[Output]) -> Answer:
        """The answer in one piece, from the output of every generation."""

    def opening(self) -> Iterator[Answer]:
        """The chunks before the first round."""
        return iter(())

    @abstractmethod
    def _part(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> BaseModel:
        """A choice of a chunk, with the tokens of a round or with the end of a generation."""

    @abstractmethod
    def _chunk(self, head: dict[str, Any], *choices: Any) -> Answer:
        """A chunk of those choices."""

    def chunks(self, event: Event) -> Iterator[Answer]:
        """The chunks of an event; none of a round whose tokens are all held back."""
        if isinstance(event, OutputRound):
            self.noted(event)
        match event:
            case OutputRound(tokens=tokens) if tokens:
                yield self._chunk(self._chunk_head(), self._part(event.choice, tokens, None))
            case Finished():
                yield self._chunk(self._chunk_head(event), self._part(event.choice, (), event))
                self._ended.append(event)
                if self._format.include_usage and len(self._ended) == self.choices:
                    yield self._chunk(self._head() | self._report(self._ended))

    def noted(self, event: OutputRound) -> None:
        """Note what a round adds to later chunks: the count of its tokens, and its report."""
        self._committed[event.choice] = event.committed
        self._rounds[event.choice] += [event.report] if event.report else []

    def _head(self) -> dict[str, Any]:
        header = self._started.header
        return {
            "id": f"{self.id_prefix}-{self._started.turn.name}",
            "created": header.created,
            "model": header.model,
            "system_fingerprint": header.system_fingerprint,
            "service_tier": header.priority.value,
        }

    def _chunk_head(self, finished: Finished | None = None) -> dict[str, Any]:
        if self._format.include_usage:
            so_far = counts_of(self._started.prompt_tokens, sum(self._committed.values()))
            return self._head() | {"usage": so_far if self._format.continuous_usage else None}
        return self._head() | (self._statistics([finished]) if finished else {})

    def _report(self, ended: Sequence[Finished]) -> dict[str, Any]:
        """The counts and statistics at the end of an answer to generations that have all ended."""
        prompts = [each for each in ended if each.choice in self._started.first_choices]
        usage = usage_of(prompts, ended)
        return {"usage": usage} | self._statistics(ended)

    def _take_rounds(self, outputs: Sequence[Output]) -> None:
        """Note the reports of a whole answer."""
        self._rounds.update({index: list(each.rounds) for index, each in enumerate(outputs)})

    def _statistics(self, ended: Sequence[Finished]) -> dict[str, Any]:
        started, summary = self._started, total([each.summary for each in ended])
        session = {"session": SessionRef(id=started.session, turn=started.turn.number)} if started.session else {}
        seed = started.header.call.sampling.seed
        return {"metrics": metrics_of(summary), "speculation": report_of(summary), "seed": seed, **session}

    def _choice(self, index: int, tokens: Sequence[OutputToken], finished: Finished | None) -> dict[str, Any]:
        """The fields that every choice has, of a whole answer and of a chunk."""
        shown: dict[str, Any] = {"token_ids": [token.id for token in tokens]} if self._format.token_ids else {}
        if rounds := self._rounds.pop(index, None):
            shown["rounds"] = rounds
        if finished is None:
            return {"index": index, "finish_reason": None, **shown}
        ending = {"finish_reason": finished.reason.value, "stop_reason": finished.matched_stop or None}
        return {"index": index, **ending, **shown}

    def _prompt_ids(self, choice: int = 0) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._started.prompt(choice))} if self._format.token_ids else {}


class CompletionWriter(Writer):
    """Writes the answers of /v1/completions."""

    id_prefix = "cmpl"

    def __init__(self, started: Started, answer_format: AnswerFormat, tokenizer: ModelTokenizer) -> None:
        super().__init__(started, answer_format, tokenizer)
        self._written: dict[int, int] = {}
        """Characters of text written so far, by the index of each choice that has begun."""

    def whole(self, outputs: Sequence[Output]) -> Answer:
        self._take_rounds(outputs)
        choices = [self._part(index, each.tokens, each.finished) for index, each in enumerate(outputs)]
        for choice in choices if self._format.echo else ():
            choice.text = self._prompt_text(choice.index) + choice.text
        return self._chunk(self._head() | self._report([each.finished for each in outputs]), *choices)

    def opening(self) -> Iterator[Answer]:
        """The text of each choice's prompt, where it is shown."""
        for index in range(self.choices) if self._format.echo else ():
            choice = CompletionChoice(**self._choice(index, (), None), text=self._prompt_text(index), logprobs=None)
            yield self._chunk(self._chunk_head(), choice)

    def _prompt_text(self, choice: int) -> str:
        return self._tokenizer.decode.settled(self._started.prompt(choice))

    def _part(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> CompletionChoice:
        prompt_ids = {} if choice in self._written else self._prompt_ids(choice)
        start, text = self._written.get(choice, 0), text_of(tokens)
        self._written[choice] = start + len(text)
        logprobs = completion_logprobs(tokens, self._tokenizer.token_bytes, start)
        return CompletionChoice(**self._choice(choice, tokens, finished), text=text, logprobs=logprobs, **prompt_ids)

    def _chunk(self, head: dict[str, Any], *choices: Any) -> Completion:
        return Completion(**head, object="text_completion", choices=list(choices))


class ChatWriter(Writer):
    """Writes the answers of /v1/chat/completions."""

    id_prefix = "chatcmpl"

    def whole(self, outputs: Sequence[Output]) -> ChatCompletion:
        self._take_rounds(outputs)
        choices = [self._message_choice(index, each) for index, each in enumerate(outputs)]
        head = self._head() | self._report([each.finished for each in outputs]) | self._prompt_ids()
        return ChatCompletion(**head, object="chat.completion", choices=choices)

    def opening(self) -> Iterator[Answer]:
        """One chunk for each choice, with the role."""
        for index in range(self.choices):
            delta = Delta(role="assistant", content="")
            choice = DeltaChoice(**self._choice(index, (), None), delta=delta, logprobs=None)
            yield self._chunk(self._chunk_head() | self._prompt_ids(), choice)

    def _part(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> DeltaChoice:
        delta = Delta() if finished else Delta(content=text_of(tokens))
        logprobs = chat_logprobs(tokens, self._tokenizer.token_bytes)
        return DeltaChoice(**self._choice(choice, tokens, finished), delta=delta, logprobs=logprobs)

    def _chunk(self, head: dict[str, Any], *choices: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(**head, object="chat.completion.chunk", choices=list(choices))

    def _message_choice(self, index: int, output: Output) -> ChatChoice:
        message = AssistantMessage(role="assistant", content=text_of(output.tokens), refusal=None)
        logprobs = chat_logprobs(output.tokens, self._tokenizer.token_bytes)
        return ChatChoice(**self._choice(index, output.tokens, output.finished), message=message, logprobs=logprobs)

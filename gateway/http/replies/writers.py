"""Writes answers of the HTTP API from the events of a request's generations, whole or in chunks."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic_core import to_json

from gateway.http.replies.logprobs import chat_logprobs, completion_logprobs
from gateway.http.replies.objects import (
    Answer,
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    SessionRef,
)
from gateway.http.replies.pieces import object_pieces
from gateway.http.replies.problems import error_body
from gateway.http.replies.prompt_logprobs import echoed, prompt_logprobs
from gateway.http.replies.statistics import counts_of, metrics_of, report_of, usage_of
from gateway.text.detokenizer import Decode
from gateway.text.output import OutputToken, text_of
from gateway.text.tokenizer import ModelTokenizer
from gateway.turns.events import Event, Finished, Output, OutputRound, Started
from gateway.turns.statistics import total
from specdec.errors import SpecdecError
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason
from specdec.wire.report import RoundReport

_TEXT = "\u241ftext\u241f"
"""Placeholder of the text in a prepared chunk."""
_FORMAT = "openai"
SCORED = 256
"""Most tokens with log probabilities in one chunk."""

_Part = TypeVar("_Part", OutputRound, Finished, OutputRound | Finished, Output)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Answer format that the caller asked for, stored with the generation so that it can be resumed."""

    chat: bool = False
    """Whether the answer is a chat completion; otherwise it is a completion."""
    include_usage: bool = False
    """Whether a stream ends with a chunk of token counts."""
    continuous_usage: bool = False
    """Whether every chunk of such a stream has the token counts so far."""
    token_ids: bool = False
    """Whether token ids are shown with the text."""
    echo: bool = False
    """Whether the text of a completion begins with the prompt."""
    prompt_only: bool = False
    """Whether the text of a completion is only the prompt."""
    prompt_logprobs: bool = False
    """Whether the prompt's log probabilities are shown in vLLM's format."""
    tokens_as_ids: bool = False
    """Whether log probabilities name tokens by their ids, as in vLLM: `token_id:5`."""

    def text(self) -> str:
        """Serialize to text for `parse`."""
        return " ".join([_FORMAT, *(each.name for each in fields(self) if getattr(self, each.name))])

    @classmethod
    def parse(cls, text: str) -> "AnswerFormat":
        """Parse the format of a text.

        An empty text, from a generation begun over gRPC, is a completion with token ids. Other APIs' texts are chats.
        """
        if not text:
            return cls(token_ids=True)
        if not text.startswith(_FORMAT):
            return cls(chat=True)
        words = text.split()
        return cls(**{each.name: True for each in fields(cls) if each.name in words})


class Writer(ABC):
    """Base class: writes the answer to one request."""

    sparse = True
    ending = b"data: [DONE]\n\n"
    id_prefix: str
    chunk_object: str
    """Value of the `object` field of chunks."""

    def __init__(self, started: Started, answer_format: AnswerFormat, tokenizer: ModelTokenizer) -> None:
        self._started = started
        self._format = answer_format
        self._tokenizer = tokenizer
        self._ended: list[Finished] = []
        self._committed: dict[int, int] = {}
        """Number of output tokens so far, by index of each started choice."""
        self._rounds: defaultdict[int, list[RoundReport]] = defaultdict(list)
        """Reports of each choice that are not in a chunk yet."""
        self._template = ChunkTemplate(self._head() | {"object": self.chunk_object})
        self._texts: dict[int, TextTemplate] = {}
        """Prepared text-only chunks, by index of their choice."""
        call, own = started.header.call, answer_format.token_ids or answer_format.continuous_usage
        self._token_bytes = _named_by_id if answer_format.tokens_as_ids else tokenizer.token_bytes
        self._text_alone = not (own or call.speculation.detail or call.logprobs is not None)

    @property
    def choices(self) -> int:
        """Number of generations of the request."""
        return self._started.header.choices

    @property
    def repeats(self) -> int:
        """Number of the prompt's tokens that the answer repeats."""
        return self._started.prompt_tokens if self._format.echo or self._format.token_ids else 0

    @abstractmethod
    def whole(self, outputs: Sequence[Output]) -> Answer:
        """Return the whole answer from the outputs of all generations."""

    def opening(self) -> Iterator[bytes]:
        """Yield the chunks before the first round, as JSON."""
        return iter(())

    def framed(self, chunk: bytes) -> bytes:
        """Return a chunk as an event of a stream."""
        return b"data: %b\n\n" % chunk

    def failure(self, error: SpecdecError) -> bytes:
        """Return the last event of a failed stream; nothing follows it."""
        return self.framed(error_body(error).model_dump_json().encode())

    @abstractmethod
    def _part(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> dict[str, Any]:
        """Return a choice of a chunk, with the tokens of a round or the end of a generation."""

    @abstractmethod
    def _text(self, text: str) -> dict[str, Any]:
        """Return the text field of a choice in a chunk."""

    def chunks(self, event: Event) -> Iterator[bytes]:
        """Yield the chunks of an event, as JSON; none for a round whose tokens are all held back."""
        if isinstance(event, OutputRound):
            self.noted(event)
        match event:
            case OutputRound(tokens=tokens, text=text, choice=choice) if tokens and self._text_alone:
                yield self._text_chunk(choice, text)
            case OutputRound(tokens=tokens) if tokens:
                yield self._chunk(self._part(event.choice, tokens, None))
            case Finished():
                part = self._part(event.choice, (), event)
                yield self._template.chunk([part], self._counts() or self._statistics([event]))
                self._ended.append(event)
                if self._format.include_usage and len(self._ended) == self.choices:
                    yield self._template.chunk([], self._report(self._ended))

    def _chunk(self, part: dict[str, Any], more: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        """Return a chunk of one choice before its end."""
        return self._template.chunk([part], {**self._counts(), **more})

    def _text_chunk(self, choice: int, text: str) -> bytes:
        """Return a chunk with only text."""
        if choice not in self._texts:
            bare = self._choice(choice, (), None) | {"logprobs": None}
            self._texts[choice] = TextTemplate(lambda shown: self._chunk(bare | self._text(shown)))
        return self._texts[choice].chunk(text)

    def noted(self, event: OutputRound) -> None:
        """Record a round's token count and report for later chunks."""
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

    def _counts(self) -> dict[str, Any]:
        """Return the usage field of a chunk before the last: the counts so far, null, or no field."""
        if not self._format.include_usage:
            return {}
        so_far = counts_of(self._started.prompt_tokens, sum(self._committed.values()))
        return {"usage": so_far if self._format.continuous_usage else None}

    def _report(self, ended: Sequence[Finished]) -> dict[str, Any]:
        """Return the final counts and statistics after all generations have ended."""
        prompts = [each for each in ended if each.choice in self._started.first_choices]
        return {"usage": usage_of(prompts, ended)} | self._statistics(ended)

    def _take_rounds(self, outputs: Sequence[Output]) -> None:
        """Record the reports of a whole answer."""
        self._rounds.update({index: list(each.rounds) for index, each in enumerate(outputs)})

    def _statistics(self, ended: Sequence[Finished]) -> dict[str, Any]:
        started, summary = self._started, total([each.summary for each in ended])
        session = {"session": SessionRef(id=started.session, turn=started.turn.number)} if started.session else {}
        seed = started.header.call.sampling.seed
        return {"metrics": metrics_of(summary), "speculation": report_of(summary), "seed": seed, **session}

    def _choice(self, index: int, tokens: Sequence[OutputToken], finished: Finished | None) -> dict[str, Any]:
        """Return the common fields of a choice, in a whole answer or a chunk."""
        shown: dict[str, Any] = {"token_ids": [token.id for token in tokens]} if self._format.token_ids else {}
        if rounds := self._rounds.pop(index, None):
            shown["rounds"] = rounds
        if finished is None:
            return {"index": index, "finish_reason": None, **shown}
        ending = {"finish_reason": finished.reason.value, "stop_reason": finished.matched_stop or None}
        return {"index": index, **ending, **shown}

    def _prompt_logprobs(self, choice: int, found: Sequence[TokenLogprobs] | None) -> dict[str, Any]:
        """Return the prompt's log probabilities in vLLM's format, if the answer shows them."""
        if found is None or not self._format.prompt_logprobs:
            return {}
        prompt = self._started.prompt(choice)
        return {"prompt_logprobs": prompt_logprobs(prompt, found, self._tokenizer.token_bytes)}

    def _prompt_ids(self, choice: int = 0) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._started.prompt(choice))} if self._format.token_ids else {}


class CompletionWriter(Writer):
    """Writes the answers of /v1/completions."""

    id_prefix = "cmpl"
    chunk_object = "text_completion"

    def __init__(self, started: Started, answer_format: AnswerFormat, tokenizer: ModelTokenizer) -> None:
        super().__init__(started, answer_format, tokenizer)
        self._written: dict[int, int] = {}
        """Number of characters written so far, by index of each started choice."""

    def whole(self, outputs: Sequence[Output]) -> Answer:
        outputs = [self._shortened(each) for each in outputs]
        self._take_rounds(outputs)
        parts = [
            self._part(index, each.tokens, each.finished, list(self._echo(index, each.prompt_logprobs)))
            | self._prompt_logprobs(index, each.prompt_logprobs)
            for index, each in enumerate(outputs)
        ]
        for part in parts if self._format.echo and not self._scores_echo else ():
            part["text"] = "".join(self._prompt_text(part["index"])) + part["text"]
        head = self._head() | self._report([each.finished for each in outputs])
        return Completion(**head, object="text_completion", choices=[CompletionChoice(**part) for part in parts])

    def opening(self) -> Iterator[bytes]:
        """Yield the echoed prompt of each choice; with log probabilities, the first round carries it instead."""
        for index in range(self.choices) if self._format.echo and not self._scores_echo else ():
            for text in self._prompt_text(index):
                yield self._text_chunk(index, text)

    def chunks(self, event: Event) -> Iterator[bytes]:
        if isinstance(event, OutputRound):
            echo = self._echo(event.choice, event.prompt_logprobs)
            while part := list(islice(echo, SCORED)):
                yield self._chunk(self._part(event.choice, (), None, part))
        match event:
            case OutputRound() | Finished():
                yield from super().chunks(self._shortened(event))

    @property
    def _scores_echo(self) -> bool:
        """Whether the prompt is echoed with its log probabilities."""
        return self._format.echo and self._started.header.call.logprobs is not None

    def _echo(self, choice: int, found: Sequence[TokenLogprobs] | None) -> Iterator[OutputToken]:
        """Return the echoed prompt tokens if their log probabilities are requested and available."""
        if found is None or not self._scores_echo:
            return iter(())
        return echoed(self._started.prompt(choice), found, self._decode)

    def _shortened(self, part: _Part) -> _Part:
        """Return a copy without output if only the prompt is shown."""
        if not self._format.prompt_only:
            return part
        match part:
            case OutputRound():
                return part._replace(tokens=(), text="", committed=0, report=None)
            case Finished():
                return part._replace(reason=FinishReason.LENGTH, matched_stop="", completion_tokens=0)
        return replace(part, tokens=(), rounds=(), finished=self._shortened(part.finished))

    @property
    def _decode(self) -> Decode:
        decode = self._tokenizer.decode
        return decode.with_special if self._started.header.shows_special else decode

    def _prompt_text(self, choice: int) -> Iterator[str]:
        return self._decode.settled(self._started.prompt(choice))

    def _part(
        self,
        choice: int,
        tokens: Sequence[OutputToken],
        finished: Finished | None,
        echo: Sequence[OutputToken] = (),
    ) -> dict[str, Any]:
        prompt_ids = {} if choice in self._written else self._prompt_ids(choice)
        shown = [*echo, *tokens]
        start, text = self._written.get(choice, 0), text_of(shown)
        self._written[choice] = start + len(text)
        logprobs = completion_logprobs(shown, self._token_bytes, start, asked=bool(echo))
        return self._choice(choice, tokens, finished) | {"logprobs": logprobs} | self._text(text) | prompt_ids

    def _text(self, text: str) -> dict[str, Any]:
        return {"text": text}


class ChatWriter(Writer):
    """Writes the answers of /v1/chat/completions."""

    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def whole(self, outputs: Sequence[Output]) -> ChatCompletion:
        self._take_rounds(outputs)
        choices = [self._message_choice(index, each) for index, each in enumerate(outputs)]
        head = self._head() | self._report([each.finished for each in outputs]) | self._prompt_ids()
        head |= self._prompt_logprobs(0, outputs[0].prompt_logprobs)
        return ChatCompletion(**head, object="chat.completion", choices=choices)

    def opening(self) -> Iterator[bytes]:
        """Yield one chunk per choice, with the role."""
        for index in range(self.choices):
            begun = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
            yield self._chunk(self._choice(index, (), None) | begun, self._prompt_ids())

    def _part(self, choice: int, tokens: Sequence[OutputToken], finished: Finished | None) -> dict[str, Any]:
        return self._delta(choice, tokens, {} if finished else {"content": text_of(tokens)}, finished)

    def _text(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def _delta(
        self, choice: int, tokens: Sequence[OutputToken], delta: dict[str, Any], finished: Finished | None = None
    ) -> dict[str, Any]:
        """Return a choice of a chunk with this part of the message."""
        logprobs = chat_logprobs(tokens, self._token_bytes)
        return self._choice(choice, tokens, finished) | {"delta": delta, "logprobs": logprobs}

    def _message_choice(self, index: int, output: Output) -> ChatChoice:
        message = AssistantMessage(role="assistant", content=text_of(output.tokens), refusal=None)
        logprobs = chat_logprobs(output.tokens, self._token_bytes)
        return ChatChoice(**self._choice(index, output.tokens, output.finished), message=message, logprobs=logprobs)


class ChunkTemplate:
    """Encodes the chunks of one stream."""

    def __init__(self, head: Mapping[str, object]) -> None:
        """Args: head: constant fields of every chunk."""
        self._head = to_json(head)[:-1] + b","

    def chunk(self, choices: Iterable[Mapping[str, Any]], more: Mapping[str, Any]) -> bytes:
        """Return the JSON of a chunk; fields that are models omit their unset fields."""
        rest = b"".join(object_pieces(more.items(), exclude_unset=True))[1:-1]
        parts = b",".join(b"".join(object_pieces(choice.items(), exclude_unset=True)) for choice in choices)
        return b'%b%b"choices":[%b]}' % (self._head, rest and rest + b",", parts)


class TextTemplate:
    """Encodes chunks in which only the text differs."""

    def __init__(self, chunk: Callable[[str], bytes]) -> None:
        """Args: chunk: encodes a chunk with the given text."""
        self._before, _, self._behind = chunk(_TEXT).rpartition(to_json(_TEXT))

    def chunk(self, text: str) -> bytes:
        """Return the JSON of the chunk with this text."""
        return self._before + to_json(text) + self._behind


def _named_by_id(token: int) -> bytes:
    return f"token_id:{token}".encode()

"""The events of a generation, in order: one Started, any number of OutputRounds, one Finished."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Container, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from gateway.text.detokenizer import Decode
from gateway.text.output import OutputToken, text_of
from gateway.tools.message_reader import MessageReader, ReadMessage, joined_message
from gateway.tools.reading import Reading
from gateway.tools.values import MessageDelta
from gateway.turns.statistics import Summary
from gateway.turns.turn import Header, Turn
from specdec.errors import InternalError
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason
from specdec.wire.report import RoundReport


@dataclass(frozen=True, slots=True)
class Started:
    """The generation is accepted, and its turn is stored; of several choices, this is the first."""

    turn: Turn
    header: Header
    prompts: tuple[tuple[int, ...], ...] = ()
    """The prompt of each choice, in tokens, where there are several choices."""

    limits: Mapping[str, str] = field(default_factory=dict)
    """What the caller is told of the limits of its API key, by the names of HTTP headers."""

    def prompt(self, choice: int) -> tuple[int, ...]:
        """Every token before the output of a choice."""
        return self.prompts[choice] if self.prompts else self.header.prompt

    @property
    def first_choices(self) -> range:
        """The index of each prompt's first choice."""
        return range(0, self.header.choices, self.header.choices // self.header.prompts)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(self.prompt(choice)) for choice in self.first_choices)

    @property
    def session(self) -> str:
        """Id of the session that the caller named; empty when the caller named none."""
        return self.turn.session_id if self.header.in_session else ""


@dataclass(frozen=True, slots=True)
class RejectedToken:
    """One drafted token that is not part of the output."""

    id: int
    decode: Decode = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The token's text, decoded on its own; few callers want it."""
        return self.decode([self.id])


@dataclass(frozen=True, slots=True)
class OutputRound:
    """What may be shown after a round was committed: the output tokens whose text is final now."""

    text: str
    """The joined text of `tokens`."""
    tokens: tuple[OutputToken, ...]
    rejected: tuple[RejectedToken, ...]
    drafted: int
    """Length of the round's draft."""
    accepted: int
    """Drafted tokens that are part of the output."""
    committed: int
    """Output tokens committed so far, shown or held back."""
    report: RoundReport | None = None
    """Set when the request asks for it."""
    choice: int = 0
    """Index of the generation among the choices of its request."""
    message: MessageDelta | None = None
    """What more of the message is known by these tokens; None where only text is read."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of the prompt's tokens but the first; set on the first round of a request that asks for them."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The generation ended well; one that failed raises an error instead."""

    reason: FinishReason
    matched_stop: str
    """The stop string that ended the output; empty when none did."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Tokens of the prompt that were not computed anew."""
    summary: Summary
    choice: int = 0
    """Index of the generation among the choices of its request."""
    message: MessageDelta | None = None
    """What is left of the message; None where only text is read."""
    called: bool = False
    """Whether the message has calls of tools, and each is whole."""


Event = Started | OutputRound | Finished


@dataclass(frozen=True, slots=True)
class Output:
    """All events of one generation, joined."""

    tokens: tuple[OutputToken, ...]
    finished: Finished
    rounds: tuple[RoundReport, ...] = ()
    """Its rounds, when the request asks for them."""
    message: ReadMessage | None = None
    """The text and the calls; None where only text was read."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of the prompt's tokens but the first; None where the request asked for none."""


async def without_first(events: AsyncGenerator[Event], count: int) -> AsyncGenerator[Event]:
    """The events of one generation without its first `count` output tokens; `events` is closed with this iterator.

    Where there is thinking to read, or calls, the whole output is read for them, so that the reader gets the rest of a
    call of which it has the beginning.
    """
    skip, reader = count, None
    async with aclosing(events):
        async for event in events:
            match event:
                case Started(turn, header):
                    reader = header.reading and MessageReader(Reading.parse(header.reading), turn.name)
                    yield event
                case OutputRound(tokens=tokens):
                    rest = _without(event, skip)
                    if reader:
                        reader.feed(_read_text(tokens[:skip], reader.tags))
                        rest = replace(rest, message=reader.feed(_read_text(rest.tokens, reader.tags)))
                    if rest.tokens or not skip:
                        yield rest
                    skip = max(0, skip - len(tokens))
                case Finished():
                    yield replace(event, message=reader.end(), called=reader.called) if reader else event


def _read_text(tokens: Iterable[OutputToken], tags: Container[str]) -> str:
    """The text of tokens, in which the names of tags stand for special tokens."""
    return "".join(token.special if token.special in tags else token.text for token in tokens)


def _without(event: OutputRound, skip: int) -> OutputRound:
    if not skip:
        return event
    tokens = event.tokens[skip:]
    return replace(event, tokens=tokens, text=text_of(tokens))


async def collect(events: AsyncGenerator[Event]) -> tuple[Started, list[Output]]:
    """Read a request's generations to their ends; returns the output of each choice.

    Raises:
        SpecdecError: a generation failed.
    """
    tokens: defaultdict[int, list[OutputToken]] = defaultdict(list)
    reports: defaultdict[int, list[RoundReport]] = defaultdict(list)
    deltas: defaultdict[int, list[MessageDelta]] = defaultdict(list)
    prompts: dict[int, tuple[TokenLogprobs, ...]] = {}
    finished: dict[int, Finished] = {}
    started: Started | None = None
    async with aclosing(events):
        async for event in events:
            match event:
                case Started():
                    started = event
                case OutputRound(message=message, choice=choice):
                    tokens[choice] += event.tokens
                    deltas[choice] += [message] if message else []
                    reports[choice] += [event.report] if event.report else []
                    prompts |= {} if event.prompt_logprobs is None else {choice: event.prompt_logprobs}
                case Finished(message=message, choice=choice):
                    finished[choice] = event
                    deltas[choice] += [message] if message else []
    if started is None or len(finished) < started.header.choices:
        raise InternalError("a generation ended without Started or Finished")
    return started, [
        Output(
            tuple(tokens[index]),
            finished[index],
            tuple(reports[index]),
            _message(finished[index], deltas[index]),
            prompts.get(index),
        )
        for index in sorted(finished)
    ]


def _message(finished: Finished, deltas: Iterable[MessageDelta]) -> ReadMessage | None:
    return joined_message(deltas) if finished.message is not None else None

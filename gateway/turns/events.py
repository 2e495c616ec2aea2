"""Events of a generation, in order: one Started, any number of OutputRounds, one Finished."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from gateway.text.detokenizer import Decode
from gateway.text.output import OutputToken, text_of
from gateway.tools.message_reader import MessageReader, ReadMessage, joined_message
from gateway.tools.reading import Reading
from gateway.tools.values import MessageDelta
from gateway.turns.statistics import Summary
from gateway.turns.turn import Header, Turn
from specdec.errors import FieldInvalid, InternalError
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason
from specdec.wire.report import RoundReport


@dataclass(frozen=True, slots=True)
class Started:
    """First event: the generation is accepted and its turn is stored. Turn and header are those of the first choice."""

    turn: Turn
    header: Header
    prompts: tuple[tuple[int, ...], ...] = ()
    """Prompt tokens of each choice; empty for a single choice."""

    limits: Mapping[str, str] = field(default_factory=dict)
    """Rate limit headers for the caller, by HTTP header name."""

    def prompt(self, choice: int) -> tuple[int, ...]:
        """Return every token before the output of a choice."""
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
        """Id of the session that the caller named; empty if it named none."""
        return self.turn.session_id if self.header.in_session else ""


@dataclass(frozen=True, slots=True)
class RejectedToken:
    """Drafted token that is not part of the output."""

    id: int
    decode: Decode = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """Text of the token, decoded on its own, on each access."""
        return self.decode([self.id])


class OutputRound(NamedTuple):
    """Output released by a committed round: the tokens whose text is now final."""

    text: str
    """Joined text of `tokens`."""
    tokens: tuple[OutputToken, ...]
    rejected: tuple[RejectedToken, ...]
    drafted: int
    """Length of the round's draft."""
    accepted: int
    """Drafted tokens that are part of the output."""
    committed: int
    """Output tokens committed so far, shown or held back."""
    report: RoundReport | None = None
    """Report of the round, if the request asks for it."""
    choice: int = 0
    """Index of the generation among the choices of its request."""
    message: MessageDelta | None = None
    """Part of the message in these tokens; None if the output is not parsed for thinking or calls."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Log probabilities of the prompt's tokens after the first; on the first round, if the request asks for them."""


class Finished(NamedTuple):
    """Last event of a successful generation; a failed one raises an error instead."""

    reason: FinishReason
    matched_stop: str
    """Stop string that ended the output; empty if none did."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens taken from the prefix cache."""
    summary: Summary
    choice: int = 0
    """Index of the generation among the choices of its request."""
    message: MessageDelta | None = None
    """Last part of the message; None if the output is not parsed for thinking or calls."""
    called: bool = False
    """Whether the message has tool calls and all are complete."""


Event = Started | OutputRound | Finished


@dataclass(frozen=True, slots=True)
class Output:
    """All events of one generation, joined."""

    tokens: tuple[OutputToken, ...]
    finished: Finished
    rounds: tuple[RoundReport, ...] = ()
    """Reports of its rounds, if the request asks for them."""
    message: ReadMessage | None = None
    """Parsed message with text and calls; None if the output was not parsed."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Log probabilities of the prompt's tokens after the first; None if the request asked for none."""


def described_tokens(started: Started, outputs: Iterable[Output]) -> int:
    """Return the number of tokens that a whole answer describes: the output, and the likely tokens listed with each."""
    call = started.header.call
    own, scored = 1 + (call.logprobs or 0), 1 + (call.prompt_logprobs or 0)
    return sum(own * len(each.tokens) + scored * len(each.prompt_logprobs or ()) for each in outputs)


def joined_rounds(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events of a generation with consecutive rounds joined. Rounds with reports stay alone."""
    rounds: list[OutputRound] = []
    for event in events:
        if isinstance(event, OutputRound) and event.report is None:
            rounds.append(event)
            continue
        if rounds:
            yield _as_one(rounds)
            rounds = []
        yield event
    if rounds:
        yield _as_one(rounds)


def _as_one(rounds: Sequence[OutputRound]) -> OutputRound:
    return rounds[-1]._replace(
        text="".join(each.text for each in rounds),
        tokens=tuple(chain.from_iterable(each.tokens for each in rounds)),
        rejected=tuple(chain.from_iterable(each.rejected for each in rounds)),
        drafted=sum(each.drafted for each in rounds),
        accepted=sum(each.accepted for each in rounds),
        prompt_logprobs=rounds[0].prompt_logprobs,
    )


async def without_first(events: AsyncGenerator[Event], count: int) -> AsyncGenerator[Event]:
    """Yield the events of one generation without its first `count` output tokens; closing this closes `events`.

    The skipped tokens are still parsed for thinking and calls, so a caller that has the beginning of a call gets the
    rest of it.
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
                        rest = rest._replace(message=reader.feed(_read_text(rest.tokens, reader.tags)))
                    if rest.tokens or not skip:
                        yield rest
                    skip = max(0, skip - len(tokens))
                case Finished():
                    yield event._replace(message=reader.end(), called=reader.called) if reader else event


def _read_text(tokens: Iterable[OutputToken], tags: Container[str]) -> str:
    """Return the text of the tokens, with special tokens that are tags written by name."""
    return "".join(token.special if token.special in tags else token.text for token in tokens)


def _without(event: OutputRound, skip: int) -> OutputRound:
    if not skip:
        return event
    tokens = event.tokens[skip:]
    return event._replace(tokens=tokens, text=text_of(tokens))


async def collect(events: AsyncGenerator[Event]) -> tuple[Started, list[Output]]:
    """Read all events of a request; return Started and the output of each choice.

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


def skips_of(after: Sequence[int], choices: int) -> Sequence[int]:
    """Return the number of tokens to skip, by choice; raises FieldInvalid if `after` has another length."""
    if after and len(after) != choices:
        raise FieldInvalid(f"the generation has {choices} choices, and the cursor speaks of {len(after)}", "received")
    return after or (0,) * choices

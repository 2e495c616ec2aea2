"""Stand-ins for the gateway's dependencies: a byte tokenizer and a scripted verifier."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from gateway.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from gateway.text.detokenizer import Decode
from gateway.tools.formats import FORMATS, format_of
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.round_streams import CallStream
from specdec.beams.options import BeamReport
from specdec.errors import (
    DeadlineExceeded,
    Draining,
    NoVerifier,
    SpecdecError,
)
from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Mode, Origin
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason
from specdec.serving.discovery import Endpoint
from specdec.serving.rpc.status import status_to_bytes
from specdec.wire.generation import GenerationCall, Round, RoundDetail, VerifierInfo
from specdec.wire.passes import Orders, Pass

_Item = TypeVar("_Item")

EOS = 256
CONTEXT = 256
TOKENIZER_HASH = "bytes"


class ByteTokenizer:
    """A tokenizer with one token per byte; 256 is the end token."""

    fingerprint = TOKENIZER_HASH
    longest_token = 1
    tool_format = FORMATS["hermes"]

    def __init__(self) -> None:
        with_special = Decode(lambda token, first: "<end>" if token == EOS else self.piece(token, first))
        self.decode = Decode(self.piece, {EOS: "<end>"}, with_special=with_special)

    def piece(self, token: int, first: bool) -> bytes:
        return bytes([token]) if token < EOS else b""

    def encode(self, prompt: Prompt, room: int = 0) -> tuple[int, ...]:
        match prompt:
            case TokenPrompt(tokens):
                return tokens
            case TextPrompt(text):
                return tuple(text.encode())
            case ChatPrompt(messages):
                return tuple("".join(f"{m.role}: {m.content}\n" for m in messages).encode())

    def encode_after(self, prompt: Prompt, history: Sequence[int], room: int = 0) -> tuple[int, ...]:
        return self.encode(prompt)

    def encode_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(word.encode()) for word in words)

    def encode_last(self, prompt: Prompt, history: Sequence[int], keep: int) -> tuple[int, ...]:
        return self.encode(prompt)[-keep:]

    def written(self, tokens: Sequence[int]) -> list[str]:
        return [chr(token) for token in tokens]

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < EOS else b"<end>"


class ThinkingTokenizer(ByteTokenizer):
    """Bytes of a model that thinks."""

    tool_format = format_of("<think>")

    def spelled(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < EOS).decode(errors="replace")


@dataclass
class Script:
    """Output of a scripted verifier: `text` and the end, in rounds of `gamma` + 1 tokens. The last is not drafted."""

    text: str = "Hello, world."
    gamma: int = 3
    fallback: str = ""
    """Reason why there are no drafts; empty when there are."""
    pause: float = 0.0
    """Seconds before each round."""
    cached: int = 0
    """Number of prompt tokens that the verifier has cached."""
    tokens: tuple[int, ...] = ()
    """Tokens in place of those of `text`."""


def output(script: Script) -> list[int]:
    """Return all tokens of a script."""
    return [*(script.tokens or script.text.encode()), EOS]


def rounds(script: Script, call: GenerationCall) -> list[Round]:
    """Yield the remaining rounds of a generation."""
    committed = len(call.tokens) - call.prompt_len
    left = output(script)[committed : call.max_tokens]
    if call.beams is not None:
        found = _round(script, call, 0, tuple(left), 0, True)
        return [found._replace(beams=BeamReport(-0.5, len(left), 3))]
    drafting = call.speculation.mode is not Mode.OFF and not script.fallback
    gamma = script.gamma if drafting else 0
    found = []
    for start in range(0, len(left), gamma + 1):
        tokens = tuple(left[start : start + gamma + 1])
        ends = start + len(tokens) == len(left)
        found.append(_round(script, call, start, tokens, gamma, ends))
    return found


def _round(script: Script, call: GenerationCall, start: int, tokens: tuple[int, ...], gamma: int, ends: bool) -> Round:
    stopped = ends and tokens[-1] == EOS
    accepted = min(len(tokens), gamma) if len(tokens) <= gamma else gamma
    draft = (*tokens[:accepted], *([65] * (gamma - accepted)))
    last = (Origin.BONUS,) if gamma else (Origin.PLAIN,)
    origins = (Origin.ACCEPTED,) * accepted + last * (len(tokens) - accepted)
    return Round(
        base_len=len(call.tokens) + start,
        tokens=tokens,
        origins=origins,
        draft=draft,
        accepted=accepted,
        finish=(FinishReason.STOP if stopped else FinishReason.LENGTH) if ends else None,
        fallback=script.fallback if not gamma and call.speculation.mode is not Mode.OFF else "",
        logprobs=() if call.logprobs is None else tuple(logprobs(token, call.logprobs) for token in tokens),
        prompt_logprobs=_prompt_logprobs(call, start),
        cached_tokens=0 if start else script.cached,
        detail=_detail(draft, accepted) if call.speculation.detail else None,
    )


def _detail(draft: tuple[int, ...], accepted: int) -> RoundDetail:
    """Return a verdict by token rejection: u is below the threshold for accepted tokens and above it for the others."""
    judged = tuple(JudgedToken(0.25, 0.5, 0.125 if place < accepted else 0.75, 0.5) for place in range(len(draft)))
    return RoundDetail(len(draft), "fixed", 0.75, network=0.001, judged=judged)


def _prompt_logprobs(call: GenerationCall, start: int) -> tuple[TokenLogprobs, ...]:
    """Return the prompt's log probabilities on the first round of a call that asks for them."""
    if start or call.prompt_logprobs is None or len(call.tokens) > call.prompt_len:
        return ()
    return tuple(replace(logprobs(token, call.prompt_logprobs), rank=token + 1) for token in call.tokens[1:])


def logprobs(token: int, top: int) -> TokenLogprobs:
    """Return log probabilities that identify the token, with alternatives whose bytes are not text."""
    return TokenLogprobs(-token / 16, tuple((128 + place, -0.5 * place) for place in range(top)))


def facts(**changes: object) -> VerifierInfo:
    """Return the model facts that a scripted verifier reports."""
    values: dict[str, object] = {
        "model": "bytes",
        "tokenizer_hash": TOKENIZER_HASH,
        "vocab_size": EOS + 1,
        "context_length": CONTEXT,
        "end_token_ids": (EOS,),
        "gamma_max": 8,
        "system_fingerprint": "fp_test",
        "grammars": True,
        "trees": True,
        "passes": True,
        "prompt_logprobs": True,
        "bad_words": True,
        "beams": True,
    }
    return VerifierInfo(**(values | changes))  # type: ignore[arg-type]


class ScriptedVerifier:
    """A verifier in this process."""

    def __init__(self, address: str = "a:1", script: Script | None = None, info: VerifierInfo | None = None) -> None:
        self.address = address
        self.script = script or Script()
        self.facts = info or facts()
        self.calls: list[GenerationCall] = []
        self.cancelled = 0
        self.running = 0
        self.most_running = 0
        self.reachable = True
        self.draining = False
        self.slow = False
        self.redials = 0
        self.dialled = 1
        self.heard = 0.0
        self.failures: list[tuple[int, SpecdecError]] = []
        """Failure of each following call: the number of rounds before it, and the error."""

    async def info(self, timeout: float) -> VerifierInfo:
        if not self.reachable:
            raise NoVerifier(f"verifier {self.address} does not answer")
        if self.slow:
            raise DeadlineExceeded(f"verifier {self.address} does not answer in time")
        if self.draining:
            raise Draining("the verifier is shutting down")
        return self.facts

    async def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        left, error = self.failures.pop(0) if self.failures else (-1, None)
        try:
            for verified in rounds(self.script, call):
                if left == 0 and error is not None:
                    raise error
                left -= 1
                await asyncio.sleep(self.script.pause)
                yield verified
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def serve(self, orders: AsyncIterator[Orders]) -> AsyncGenerator[Pass]:
        """Serve all generations with one call of `generate` each, one pass after the other."""
        stream = CallStream(self)
        following = asyncio.create_task(drained(orders, partial(_follow, stream)))
        try:
            while True:
                rounds, ended = await stream.arrivals.take()
                flat = [(slot, verified) for slot, own in rounds.items() for verified in own]
                yield Pass(flat, {slot: status_to_bytes(error) for slot, error in ended.items()})
        finally:
            following.cancel()
            await stream.close()

    async def begin(self, call: GenerationCall, timeout: float) -> Callable[[Sequence[int]], None]:
        return lambda tokens: None

    def redial(self) -> None:
        self.redials += 1

    async def close(self) -> None:
        return


def _follow(stream: CallStream, orders: Orders) -> None:
    for opening in orders.opens:
        stream.open(opening)
    for slot in orders.cancels:
        stream.cancel(slot)
    for slot, length in orders.credits.items():
        stream.credit(slot, length)


def knowing(pool: VerifierPool, *verifiers: ScriptedVerifier) -> VerifierPool:
    """Make the pool know exactly these verifiers, and return it."""
    by_address = {verifier.address: verifier for verifier in verifiers}
    pool.replace(tuple(map(Endpoint, by_address)), by_address.__getitem__)  # type: ignore[arg-type]
    return pool


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until `condition()` is true, or fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in code that knows no events of ours
            await asyncio.sleep(0.005)


async def drained(items: AsyncIterable[_Item], seen: Callable[[_Item], object]) -> None:
    """Call `seen` with every item."""
    async for item in items:
        seen(item)

"""Client of one drafter: keeps one stream for all sessions and reopens it after each loss."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import grpc
import grpc.aio

from specdec.errors import DrafterMismatch, SpecdecError, TokenizerMismatch
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.protos.drafter.v1 import drafter_pb2_grpc
from specdec.sampling.vocabulary import Vocabulary
from specdec.serving.rpc.access import UNGUARDED, Access
from specdec.serving.rpc.channel import open_channel
from specdec.serving.rpc.checksum import received
from specdec.wire.beams import BeamAsk, ProposedBeam, ask_to_pb, proposal_from_pb
from specdec.wire.draft import PROTOCOL, draft_from_pb
from specdec.wire.session import CLOSE, COMMIT, END, LOAD, NACK, OPEN, VOCABULARY, Commit, Open
from verifier_service.drafts.link import DrafterLink, Frame, LinkState

_MOST_BYTES = 8 * 2**20
"""Most bytes of features in a request, half of the largest message; more only of one session."""
DraftStream = grpc.aio.StreamStreamCall[pb.DraftRequest, pb.DraftResponse]


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Timeouts and intervals of a stream, in seconds except `silent_pings`."""

    hello: float = 5.0
    """Timeout of the handshake."""
    ping: float = 0.5
    """Interval between pings."""
    silent_pings: int = 4
    """Number of consecutive unanswered pings after which the stream is closed."""
    first_retry: float = 0.1
    """Back-off after the first failure. It doubles with each further failure."""
    last_retry: float = 2.0
    """Longest back-off."""
    refused_retry: float = 10.0
    """Pause before another attempt to connect to a drafter that does not fit."""


@dataclass(frozen=True, slots=True)
class Identity:
    """How this verifier introduces itself to drafters."""

    verifier_id: str
    """Name of the verifier in the drafters' logs."""
    tokenizer_hash: str
    """Fingerprint of the target's tokenizer. A drafter must use the same tokenizer or translate to it."""
    access: Access = UNGUARDED
    """Credentials for the drafters."""
    vocabulary: Vocabulary | None = None
    """Target vocabulary that drafters translate to. None refuses every drafter with another tokenizer."""
    least_overlap: float = 0.0
    """Least overlap of a translating drafter's vocabulary with the target's, as a share of the smaller one."""
    encoder_decoder: bool = False
    """Whether the target reads its prompts with an encoder."""
    features: str = ""
    """Name of the features that the target computes for a draft head; empty for none."""


class DrafterRefusedToken(DrafterMismatch):
    """The drafter rejected this verifier's access token."""


class LinkBroken(Exception):
    """The stream could not be opened, or broke."""


class DrafterClient:
    """Exchanges frames between one link and its drafter."""

    def __init__(self, link: DrafterLink, identity: Identity, times: LinkTimes | None = None) -> None:
        self._link = link
        self._identity = identity
        self._times = times or LinkTimes()
        self._unanswered = 0
        self._pings: dict[int, float] = {}
        """Send time of each unanswered ping, by nonce."""

    async def run(self) -> None:
        """Connect, and reconnect after every loss, until cancelled."""
        retry = self._times.first_retry
        while True:
            try:
                async with self.greeted() as stream:
                    await self._exchange(stream)
            except DrafterRefusedToken as error:
                self._link.refused(error.message, LinkState.UNAUTHENTICATED)
                retry = self._times.refused_retry
            except DrafterMismatch as error:
                self._link.refused(error.message)
                retry = self._times.refused_retry
            except LinkBroken as error:
                served = self._link.state is LinkState.READY
                self._link.lost(str(error))
                retry = self._times.first_retry if served else min(retry * 2, self._times.last_retry)
            await asyncio.sleep(retry * random.uniform(0.5, 1.0))

    @asynccontextmanager
    async def greeted(self) -> AsyncIterator[DraftStream]:
        """Open a stream to the drafter and complete the handshake.

        Raises:
            DrafterMismatch: the drafter does not fit, or rejects the access token.
            LinkBroken: the drafter does not answer, or the stream breaks inside the context.
        """
        async with open_channel(self._link.address, self._identity.access) as channel:
            stream = drafter_pb2_grpc.DrafterServiceStub(channel).Draft()
            try:
                async with asyncio.timeout(self._times.hello):
                    await self._greet(stream)
                self._link.propose_beams = partial(proposed_beams, channel)
                yield stream
            except (DrafterMismatch, LinkBroken):
                raise
            except Exception as error:  # any failure loses only this stream, never the verifier
                raise LinkBroken(_explain(error)) from error
            finally:
                self._link.propose_beams = None
                stream.cancel()

    async def _greet(self, stream: DraftStream) -> None:
        mine = self._identity
        hello = pb.Hello(
            protocol=PROTOCOL,
            verifier_id=mine.verifier_id,
            tokenizer_hash=mine.tokenizer_hash,
            features=mine.features,
        )
        if mine.vocabulary is not None:
            hello.vocabulary.CopyFrom(VOCABULARY.to_pb(mine.vocabulary))
        try:
            await stream.write(pb.DraftRequest(hello=hello))
            ack = (await _read(stream)).hello_ack
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise DrafterRefusedToken(error.details() or "the drafter asks for another token") from error
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                message = "what answers is no drafter: is it the address of a verifier, or a gateway's?"
                raise DrafterMismatch(message) from error
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise DrafterMismatch(error.details() or "the drafter refused the conversation") from error
            raise
        _check_architecture(ack, mine)
        self._link.reads_features = _reads_features(ack, mine)
        self._link.connected(ack.model, ack.step_seconds, ack.kind, _overlap(ack, mine), ack.outcomes)

    async def _exchange(self, stream: DraftStream) -> None:
        self._unanswered = 0
        self._pings = {}
        parts = [asyncio.create_task(part) for part in (self._receive(stream), self._send(stream), self._watch())]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        for part in done:
            part.result()

    async def _receive(self, stream: DraftStream) -> None:
        while True:
            response = await _read(stream)
            self._unanswered = 0
            self._take(response)

    async def _send(self, stream: DraftStream) -> None:
        while True:
            for request in requests_of(await self._link.outbox.take()):
                await stream.write(request)

    async def _watch(self) -> None:
        nonce = 0
        while True:
            await asyncio.sleep(self._times.ping)
            if self._unanswered >= self._times.silent_pings:
                raise LinkBroken("no answer to pings")
            nonce += 1
            self._unanswered += 1
            self._pings[nonce] = time.perf_counter()
            self._link.outbox.ping(nonce)

    def _take(self, response: pb.DraftResponse) -> None:
        for message in response.drafts:
            try:
                self._link.drafted(draft_from_pb(message))
            except SpecdecError as error:
                self._link.malformed(message.session_id, message.epoch, error.message)
        for end in map(END.from_pb, response.ends):
            self._link.ended(end)
        for nack in map(NACK.from_pb, response.nacks):
            self._link.nacked(nack)
        if response.HasField("pong"):
            self._answered(response.pong.nonce)
        if response.HasField("load"):
            self._link.loaded(LOAD.from_pb(response.load))

    def _answered(self, nonce: int) -> None:
        sent = self._pings.get(nonce)
        self._pings = {later: at for later, at in self._pings.items() if later > nonce}
        if sent is not None:
            self._link.round_trip(time.perf_counter() - sent)


def _check_architecture(ack: pb.HelloAck, mine: Identity) -> None:
    """Raise DrafterMismatch if a model drafter is an encoder-decoder and the target is not, or the reverse."""
    if ack.kind in ("", "model", "hybrid") and ack.encoder_decoder is not mine.encoder_decoder:
        kinds = {True: "an encoder-decoder", False: "decoder-only"}
        name = ack.model or "the drafter"
        raise DrafterMismatch(f"{name} is {kinds[ack.encoder_decoder]}, and the target {kinds[mine.encoder_decoder]}")


def _reads_features(ack: pb.HelloAck, mine: Identity) -> bool:
    """Return whether a drafter reads features; raise DrafterMismatch if they are of another head or data type."""
    if ack.features and ack.features != mine.features:
        raise DrafterMismatch(f"{ack.model} reads features {ack.features}, drafter_head has {mine.features or 'none'}")
    return bool(ack.features)


def _overlap(ack: pb.HelloAck, mine: Identity) -> float:
    """Return the overlap of the vocabularies as a share of the smaller one; raise TokenizerMismatch if too small."""
    if ack.tokenizer_hash == mine.tokenizer_hash:
        return 1.0
    name = ack.model or "the drafter"
    if mine.vocabulary is None:
        raise TokenizerMismatch(f"the tokenizer of {name} is not the target's, and drafter_vocabulary is `same`")
    if ack.overlap < max(mine.least_overlap, sys.float_info.min):
        raise TokenizerMismatch(
            f"{name} and the target have {ack.overlap:.1%} of the smaller vocabulary in common, "
            f"less than least_overlap, {mine.least_overlap:.1%}"
        )
    return ack.overlap


async def _read(stream: DraftStream) -> pb.DraftResponse:
    response = received(await stream.read())
    if not isinstance(response, pb.DraftResponse):
        raise LinkBroken("the drafter ended the stream")
    return response


def _explain(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or error.code().name
    return str(error) or type(error).__name__


def requests_of(frame: Frame) -> Iterator[pb.DraftRequest]:
    """Yield the messages of a frame in their order, in as many requests as their features need."""
    messages: tuple[Open | Commit, ...] = (*frame.opens, *frame.commits)
    request, size = pb.DraftRequest(), 0
    for message in messages:
        more = 0 if message.features is None else len(message.features.values)
        if size and size + more > _MOST_BYTES:
            yield request
            request, size = pb.DraftRequest(), 0
        size += more
        if isinstance(message, Open):
            request.opens.append(OPEN.to_pb(message))
        else:
            request.commits.append(COMMIT.to_pb(message))
    request.closes.extend(CLOSE.to_pb(message) for message in frame.closes)
    if frame.ping is not None:
        request.ping.nonce = frame.ping
    yield request


async def proposed_beams(channel: grpc.aio.Channel, ask: BeamAsk, vocab_size: int) -> tuple[ProposedBeam, ...]:
    """Return a drafter's beams for the next steps of a search; empty if it has none.

    Raises:
        grpc.aio.AioRpcError: the drafter cannot be reached, or is of a version that proposes no beams.
        LinkBroken: the channel was closed meanwhile.
        SpecdecError: the answer is corrupted or malformed.
    """
    call = drafter_pb2_grpc.DrafterServiceStub(channel).DraftBeams(ask_to_pb(ask))
    try:
        answer = received(await call)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise LinkBroken("the connection was closed") from None
    return proposal_from_pb(answer, len(ask.beams), vocab_size)

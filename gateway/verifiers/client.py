"""RPC 1, gateway to verifier: a call out, a stream of rounds back."""

from collections.abc import AsyncGenerator, Iterator, Sequence

import grpc.aio

from gateway.verifiers.verifier import Call, DrafterState, KvSpan, VerifiedRound, VerifierInfo
from protos.verifier.v1 import verifier_pb2 as pb
from protos.verifier.v1.verifier_pb2_grpc import VerifierServiceStub
from specdec.errors import DeadlineExceeded, Draining, InternalError, NoVerifier, QueueFull, SpecdecError
from specdec.serving.channel import open_channel
from specdec.serving.status import from_rpc_error
from specdec.serving.tls import Certificates
from specdec.wire.logprobs import logprobs_from_pb
from specdec.wire.params import finish_from_pb, mode_to_pb, origin_from_pb, sampling_to_pb
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes

_PIECE_BYTES = 2**20
"""Of a block's value in one message."""
_KV_TIMEOUT = 30.0
"""Seconds; nobody waits for a block as long, but an answer that never comes must not stay."""


class VerifierClient:
    """One verifier over gRPC (see gateway.verifier.Verifier)."""

    def __init__(self, address: str, certificates: Certificates | None = None) -> None:
        self.address = address
        self._certificates = certificates
        self._dial()

    def _dial(self) -> None:
        self._pems = self._certificates and self._certificates.pems
        self._channel = open_channel(self.address, self._certificates)
        self._stub = VerifierServiceStub(self._channel)

    async def _redial_with_new_certificates(self) -> None:
        """A channel keeps its certificates for life: one that broke after they changed is replaced."""
        if self._certificates and self._certificates.pems != self._pems:
            broken = self._channel
            self._dial()
            await broken.close()

    async def info(self, timeout: float) -> VerifierInfo:
        """Ask for its facts.

        Raises:
            Draining: it is shutting down.
            DeadlineExceeded: it does not answer within `timeout` seconds.
            NoVerifier: it is not there.
        """
        try:
            answer = await self._stub.GetVerifierInfo(pb.GetVerifierInfoRequest(), timeout=timeout)
        except grpc.RpcError as error:
            unanswered = self._unanswered(error)
            if isinstance(unanswered, NoVerifier):
                await self._redial_with_new_certificates()
            raise unanswered from error
        return VerifierInfo(
            model=answer.model,
            tokenizer_hash=answer.tokenizer_hash,
            vocab_size=answer.vocab_size,
            context_length=answer.context_length,
            end_token_ids=tuple(answer.end_token_ids),
            gamma_max=answer.gamma_max,
            system_fingerprint=answer.system_fingerprint,
            drafters=tuple(DrafterState(drafter.address, drafter.state, drafter.model) for drafter in answer.drafters),
            prefill_rate=answer.prefill_rate,
        )

    async def generate(self, call: Call, timeout: float) -> AsyncGenerator[VerifiedRound]:
        """Its rounds; closing the iterator cancels the generation there.

        Raises:
            NoVerifier: it was lost.
            DeadlineExceeded: `timeout` seconds went by.
            SpecdecError: it refused.
        """
        rpc = self._stub.Generate(_request(call), timeout=timeout)
        try:
            async for message in rpc:
                yield _round(message)
        except grpc.RpcError as error:
            raise self._translated(error) from error
        finally:
            rpc.cancel()

    async def find_kv(self, tokens: Sequence[int], cache_salt: str) -> int:
        """See gateway.verifier.BlockVerifier."""
        request = pb.FindKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=cache_salt)
        try:
            return int((await self._stub.FindKv(request, timeout=_KV_TIMEOUT)).held)
        except grpc.RpcError as error:
            raise self._translated(error) from error

    async def export_kv(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        """See gateway.verifier.BlockVerifier."""
        request = pb.ExportKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=cache_salt, start=start)
        try:
            return b"".join([piece.data async for piece in self._stub.ExportKv(request, timeout=_KV_TIMEOUT)])
        except grpc.RpcError as error:
            raise self._translated(error) from error

    async def restore_kv(self, span: KvSpan, values: Sequence[bytes]) -> tuple[int, str]:
        """See gateway.verifier.BlockVerifier."""
        try:
            answer = await self._stub.RestoreKv(_pieces(span, values), timeout=_KV_TIMEOUT)
        except grpc.RpcError as error:
            raise self._translated(error) from error
        return answer.held, answer.miss

    async def close(self) -> None:
        """Let the connection go."""
        await self._channel.close()

    def _unanswered(self, error: grpc.RpcError) -> SpecdecError:
        known = from_rpc_error(error)
        if isinstance(known, Draining):
            return known
        if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"verifier {self.address} does not answer in time")
        return NoVerifier(f"verifier {self.address} does not answer")

    def _translated(self, error: grpc.RpcError) -> SpecdecError:
        known = from_rpc_error(error)
        if known is not None:
            return known
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
        match code:
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                return NoVerifier(f"verifier {self.address} was lost")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return DeadlineExceeded("the deadline passed")
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return QueueFull(f"verifier {self.address} takes no more work")
        return InternalError(f"verifier {self.address} failed with {code.name}")


def _request(call: Call) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        session_id=call.session_id,
        epoch=call.epoch,
        tokens=tokens_to_bytes(call.tokens),
        prompt_len=call.prompt_len,
        sampling=sampling_to_pb(call.sampling),
        max_tokens=call.max_tokens,
        stop_token_ids=call.stop_token_ids,
        speculation=pb.Speculation(
            mode=mode_to_pb(call.speculation.mode),
            gamma=call.speculation.gamma,
            lenience=call.speculation.lenience,
        ),
        logprobs=call.logprobs,
        priority=call.priority,
        cache_salt=call.cache_salt,
    )


def _pieces(span: KvSpan, values: Sequence[bytes]) -> Iterator[pb.RestoreKvRequest]:
    named = pb.KvSpan(
        tokens=tokens_to_bytes(span.tokens),
        cache_salt=span.cache_salt,
        start=span.start,
        block_tokens=span.block_tokens,
    )
    yield pb.RestoreKvRequest(span=named)
    for value in values:
        for begin in range(0, max(len(value), 1), _PIECE_BYTES):
            end = begin + _PIECE_BYTES
            yield pb.RestoreKvRequest(data=value[begin:end], ends_block=end >= len(value))


def _round(message: pb.GenerateResponse) -> VerifiedRound:
    return VerifiedRound(
        base_len=message.base_len,
        tokens=tuple(tokens_from_bytes(message.tokens)),
        origins=tuple(origin_from_pb(origin) for origin in message.origins),
        draft=tuple(tokens_from_bytes(message.draft_tokens)),
        accepted=message.accepted,
        finish=finish_from_pb(message.finish_reason),
        fallback_reason=message.fallback_reason,
        draft_seconds=message.timing.draft,
        queue_seconds=message.timing.queue,
        verify_seconds=message.timing.verify,
        logprobs=logprobs_from_pb(message.logprobs),
    )

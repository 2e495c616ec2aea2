"""KV moves from one verifier to another bit for bit, or not at all."""

from collections.abc import AsyncIterator, Sequence

import grpc
import pytest

from specdec.errors import FieldInvalid
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.serving.rpc.status import from_rpc_error
from specdec.wire.tokens import tokens_to_bytes
from tests.integration.verifier.client import Client, output
from tests.integration.verifier.draft_scripts import oracle
from tests.integration.verifier.house import House
from tests.integration.verifier.target import Target

BLOCK = 32
LENGTH = 40
PROMPT = tuple(40 + index % 50 for index in range(80))


async def found(client: Client, tokens: Sequence[int], salt: str = "ann") -> int:
    answer = await client.stub.FindKv(pb.FindKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=salt))
    return int(answer.held)


async def exported(client: Client, tokens: Sequence[int], start: int, salt: str = "ann") -> bytes:
    request = pb.ExportKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=salt, start=start)
    return b"".join([piece.data async for piece in client.stub.ExportKv(request)])


async def blocks_of(client: Client, tokens: Sequence[int], salt: str = "ann") -> list[bytes]:
    ends = range(BLOCK, len(tokens) + 1, BLOCK)
    return [await exported(client, tokens[:end], end - BLOCK, salt) for end in ends]


async def restored(
    client: Client, tokens: Sequence[int], values: Sequence[bytes], start: int = 0, salt: str = "ann"
) -> pb.RestoreKvResponse:
    async def messages() -> AsyncIterator[pb.RestoreKvRequest]:
        span = pb.KvSpan(tokens=tokens_to_bytes(tokens), cache_salt=salt, start=start, block_tokens=BLOCK)
        yield pb.RestoreKvRequest(span=span)
        for value in values:
            yield pb.RestoreKvRequest(data=value[:100])
            yield pb.RestoreKvRequest(data=value[100:], ends_block=True)

    return await client.stub.RestoreKv(messages())


async def test_restored_blocks_are_equal_to_the_bit_and_speculation_continues(house: House, target: Target) -> None:
    drafter = await house.drafter(oracle(target))
    first, second = await house.verifier(drafter), await house.verifier(drafter)
    text = target.greedy(PROMPT, LENGTH)
    assert output(await first.rounds(PROMPT, gamma=4, max_tokens=LENGTH, salt="ann")) == text
    whole = (*PROMPT, *text)[: 3 * BLOCK]
    values = await blocks_of(first, whole)
    assert all(values)
    assert await found(second, whole) == 0
    answer = await restored(second, whole, values)
    assert (answer.held, answer.miss) == (3 * BLOCK, "")
    assert await blocks_of(second, whole) == values
    rounds = await second.rounds((*PROMPT, *text[:20]), prompt_len=80, gamma=4, max_tokens=LENGTH, salt="ann")
    assert output(rounds) == text[20:]
    assert sum(done.accepted for done in rounds) > 0
    assert (await first.info()).prefill_rate > 0


async def test_only_what_stands_is_exported_while_a_generation_runs(house: House, target: Target) -> None:
    client = await house.verifier(await house.drafter(oracle(target)))
    call = client.call(PROMPT, gamma=4, max_tokens=100, salt="ann")
    rounds = [await call.read() for _ in range(2)]
    assert await exported(client, PROMPT[:BLOCK], 0)
    other = (*PROMPT[: BLOCK - 1], PROMPT[BLOCK])
    assert not await exported(client, other, 0)
    text = target.greedy(PROMPT, 100)
    assert output(rounds) == text[: len(output(rounds))]
    assert not await exported(client, (*PROMPT, *text)[: 5 * BLOCK], 4 * BLOCK)
    call.cancel()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda value: value[:-1], "short"),
        (lambda value: value[:10], "short"),
        (lambda value: b"", "short"),
        (lambda value: b"X" + value[1:], "corrupt"),
        (lambda value: value[:200] + bytes([value[200] ^ 1]) + value[201:], "corrupt"),
        (lambda value: value + b"X", "corrupt"),
        (lambda value: value[:40] + bytes([value[40] ^ 1]) + value[41:], "corrupt"),
    ],
)
async def test_a_damaged_value_ends_the_restore_where_it_stands(
    house: House, target: Target, spoil: object, reason: str
) -> None:
    assert callable(spoil)
    first, second = await house.verifier(), await house.verifier()
    text = output(await first.rounds(PROMPT, gamma=0, salt="ann"))
    whole = (*PROMPT, *text)[: 3 * BLOCK]
    values = await blocks_of(first, whole)
    answer = await restored(second, whole, [values[0], spoil(values[1]), values[2]])
    assert (answer.held, answer.miss) == (BLOCK, reason)
    assert output(await second.rounds(PROMPT, gamma=0, salt="ann")) == text


async def test_a_value_of_another_sequence_or_user_is_foreign(house: House) -> None:
    first, second = await house.verifier(), await house.verifier()
    await first.rounds(PROMPT, gamma=0, salt="ann")
    await first.rounds(PROMPT, gamma=0, salt="bob", session="b")
    span = PROMPT[: 2 * BLOCK]
    ann, bob = await blocks_of(first, span), await blocks_of(first, span, "bob")
    assert ann[0]
    assert ann[0] != bob[0]
    assert (await restored(second, span, bob)).miss == "foreign"
    assert (await restored(second, span, ann[::-1])).miss == "foreign"
    assert await found(second, span) == 0
    assert not await exported(first, span, BLOCK, "eve")


async def test_blocks_without_room_or_without_what_they_follow_are_left_out(house: House) -> None:
    first = await house.verifier()
    await first.rounds(PROMPT, gamma=0, salt="ann")
    span = PROMPT[: 2 * BLOCK]
    values = await blocks_of(first, span)
    tiny = await house.verifier(kv_bytes=2**16)
    tail = await restored(tiny, span, values[1:], start=BLOCK)
    assert (tail.held, tail.miss) == (0, "gone")
    running = tiny.call(PROMPT, gamma=0, max_tokens=48)
    await running.read()
    full = await restored(tiny, span, values)
    assert (full.held, full.miss) == (0, "no_room")
    running.cancel()


@pytest.mark.parametrize("span", [{}, {"block_tokens": 24}, {"block_tokens": 48}, {"block_tokens": 32, "start": 64}])
async def test_a_span_that_is_not_of_whole_blocks_is_refused(house: House, span: dict[str, int]) -> None:
    client = await house.verifier()

    async def messages() -> AsyncIterator[pb.RestoreKvRequest]:
        yield pb.RestoreKvRequest(span=pb.KvSpan(tokens=tokens_to_bytes(PROMPT[:64]), **span))  # type: ignore[arg-type]

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.stub.RestoreKv(messages())
    assert isinstance(from_rpc_error(refused.value), FieldInvalid)

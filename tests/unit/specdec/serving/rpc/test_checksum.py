"""Every changed, added or missing byte of a message is found before the message is parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import MessageCorrupted
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.serving.rpc.checksum import METADATA, SIZE, decoder, encoder, is_declared, is_intact, received, sealed

ROUND = pb.GenerateResponse(
    base_len=7, tokens=b"\1\0\0\0\2\0\0\0", origins=[1, 4], draft_tokens=b"\1\0\0\0", accepted=1
)
encode = encoder(lambda message: message.SerializeToString())
decode = decoder(pb.GenerateResponse.FromString)


@given(st.binary(max_size=64), st.data())
def test_a_changed_byte_is_found_wherever_it_is(body: bytes, data: st.DataObject) -> None:
    raw = bytearray(sealed(body))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    assert is_intact(sealed(body))
    assert not is_intact(bytes(raw))


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_a_message_or_the_error(raw: bytes) -> None:
    for given_bytes in (raw, sealed(raw)):
        try:
            assert isinstance(received(decode(given_bytes)), pb.GenerateResponse)
        except MessageCorrupted:
            continue


def test_a_message_arrives_as_it_was_and_one_without_a_checksum_does_not() -> None:
    raw = encode(ROUND)
    arrived = received(decode(raw))
    assert (arrived.base_len, arrived.tokens, list(arrived.origins)) == (7, ROUND.tokens, [1, 4])
    for broken in (ROUND.SerializeToString(), raw[:-1], raw + b"\0", raw[1:], b"", raw[-SIZE:][:3]):
        with pytest.raises(MessageCorrupted):
            received(decode(broken))


def test_a_peer_that_does_not_check_reads_the_message_all_the_same() -> None:
    assert pb.GenerateResponse.FromString(encode(ROUND)).tokens == ROUND.tokens
    assert encode(pb.GetVerifierInfoRequest())[:1] == bytes([15 << 3 | 5])
    assert pb.GetVerifierInfoRequest.DESCRIPTOR.fields_by_name["checksum"].number == 15


def test_only_the_declaration_declares() -> None:
    assert is_declared((("a", "b"), *METADATA))
    assert not is_declared((("specdec-checksum", "other"), ("grpc-bin", b"\0")))
    assert not is_declared(None)

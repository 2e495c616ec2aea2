"""Bad words over both APIs: texts become ids that the verifier suppresses, or the request is refused by field name."""

from typing import Any

import grpc
import openai
import pytest

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from tests.integration.gateway.stage import Stage

WORDS = ["ab", "c"]
IDS = (tuple(b"ab"), tuple(b"c"))


async def test_every_api_has_them(here: Stage, channel: grpc.aio.Channel) -> None:
    more: Any = {"bad_words": WORDS}
    await here.client.completions.create(model="bytes", prompt="hi", extra_body=more)
    await here.client.chat.completions.create(
        model="bytes", messages=[{"role": "user", "content": "hi"}], extra_body=more
    )
    stub: Any = pb_grpc.GenerationServiceStub(channel)
    await stub.Generate(pb.GenerateRequest(text="hi", sampling=pb.SamplingOptions(bad_words=WORDS)))
    await stub.Generate(pb.GenerateRequest(text="hi"))
    assert [call.sampling.bad_words for call in here.verifier.calls] == [IDS, IDS, IDS, ()]


@pytest.mark.parametrize("words", [[""], [" "], ["x" * 257], ["x"] * 257, "x", [1]])
async def test_what_makes_no_sense_is_refused(words: Any, here: Stage) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await here.client.completions.create(model="bytes", prompt="hi", extra_body={"bad_words": words})
    assert str(caught.value.param).startswith("bad_words")

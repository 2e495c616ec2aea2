"""Lenience over the wire: more drafts are kept, also at temperature 0, and it is refused where a mode must be exact."""

from pathlib import Path

import grpc
import pytest

from specdec.errors import FieldInvalid
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.status import from_rpc_error
from tests.conformance.served_pair import pair, running_verifier
from tests.integration.verifier.client import output
from tests.support.tiny_models import make_tiny_model

LENGTH = 60


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and a drafter that is often wrong."""
    folder = tmp_path_factory.mktemp("lenience")
    return make_tiny_model(folder / "target", seed=3), make_tiny_model(folder / "drafter", seed=3, noise=0.1)


def rate(rounds: list[pb.GenerateResponse]) -> float:
    drafted = sum(len(response.draft_tokens) // 4 for response in rounds)
    return sum(response.accepted for response in rounds) / drafted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_more_lenient_the_more_drafts_are_kept(temperature: float, folders: tuple[Path, Path]) -> None:
    params = SamplingParams(temperature=temperature, seed=2)
    rates, outputs = [], []
    async with pair(*folders) as client:
        for lenience in (None, 1.0, 0.1, 1e-6):
            rounds = await client.rounds(
                gamma=3, params=params, max_tokens=LENGTH, lenience=lenience, session=f"s{lenience}"
            )
            rates.append(rate(rounds))
            outputs.append(output(rounds))
    assert outputs[0] == outputs[1]
    assert rates[1] < rates[2] <= rates[3] == 1.0


@pytest.mark.parametrize(
    ("mode", "lenience"),
    [
        *((mode, 0.5) for mode in Mode if mode is not Mode.REJECTION),
        *((Mode.REJECTION, lenience) for lenience in (0.0, -1.0, 1.5, float("nan"))),
    ],
)
async def test_what_cannot_be_lenient_is_refused_by_name(
    mode: Mode, lenience: float, folders: tuple[Path, Path]
) -> None:
    async with running_verifier(folders[0]) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.rounds(mode=mode, lenience=lenience)
        error = from_rpc_error(caught.value)
        assert isinstance(error, FieldInvalid)
        assert error.param == "speculation.lenience"

"""The kernel of coupled mode matches the host's noise to the bit.

Without a GPU, Triton's interpreter runs the kernel, and the tests check that it compiles for a GPU.
"""

import os
import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from specdec.rules import coupling, noise_kernel
from specdec.rules.rng import Lane, coordinates, exponential_on_device, philox

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
pytestmark = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs CUDA or no nvidia-smi")
SEEDS = [0, 5, 2**31, 2**62 + 7, 2**63 - 1, 2**64 - 1, 77]
POSITIONS = [0, 2**32 - 1, 3, 40, 500, 6000, 70_000]


@triton.jit
def _drawn(words: tl.tensor, ids: tl.tensor, out: tl.tensor, LANE: tl.constexpr, COUNT: tl.constexpr) -> None:
    row, at = tl.program_id(0), tl.arange(0, COUNT)
    rows = tl.num_programs(0)
    seed = tl.load(words + row) | (tl.load(words + rows + row) << 32)
    position = tl.load(words + 2 * rows + row)
    tl.store(out + row * COUNT + at, noise_kernel.uniforms(seed, position, tl.load(ids + at), LANE))


@triton.jit
def _philox(counter: tl.tensor, key: tl.tensor, out: tl.tensor, COUNT: tl.constexpr) -> None:
    at = tl.arange(0, COUNT)
    words = tl.philox(
        tl.load(key + at),
        tl.load(counter + at).to(tl.uint32),
        tl.load(counter + COUNT + at).to(tl.uint32),
        tl.load(counter + 2 * COUNT + at).to(tl.uint32),
        tl.load(counter + 3 * COUNT + at).to(tl.uint32),
    )
    tl.store(out + at, words[0].to(tl.int64))
    tl.store(out + COUNT + at, words[1].to(tl.int64))
    tl.store(out + 2 * COUNT + at, words[2].to(tl.int64))
    tl.store(out + 3 * COUNT + at, words[3].to(tl.int64))


def words() -> Tensor:
    return coordinates(SEEDS, POSITIONS).to(DEVICE)


def laws(width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dense, sparse, one-hot at each end, and nearly uniform rows."""
    p = (3 * torch.randn(len(SEEDS), width, generator=torch.Generator().manual_seed(1))).to(dtype).softmax(-1)
    p[1, width // 3 :] = 0
    p[2] = torch.eye(width, dtype=dtype)[-1]
    p[3] = torch.eye(width, dtype=dtype)[0]
    p[4] = 1 / width
    return p


def test_tritons_philox_gives_the_published_answers_and_the_hosts() -> None:
    """Random123 1.14, tests/kat_vectors, philox 4x32 10; the fourth column is arbitrary."""
    counter = torch.tensor([[0, 2**32 - 1, 0x243F6A88, 1], [0, 2**32 - 1, 0x85A308D3, 2]] * 2)
    counter[2:, 2] = torch.tensor([0x13198A2E, 0x03707344])
    low, high = torch.tensor([0, 2**32 - 1, 0xA4093822, 9]), torch.tensor([0, 2**32 - 1, 0x299F31D0, 2**31])
    out = torch.zeros(4, 4, dtype=torch.int64, device=DEVICE)
    _philox[(1,)](counter.to(DEVICE), (low | high << 32).to(DEVICE), out, COUNT=4)
    published = [
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ]
    assert out.T.tolist()[:3] == published
    assert torch.equal(out.cpu(), torch.stack(philox(tuple(counter), (low, high))))  # type: ignore[arg-type]


def test_its_uniforms_are_the_hosts_to_the_bit() -> None:
    ids = torch.tensor([*range(60), 2**31 - 1, 2**31, 2**32 - 1, 151_935])
    out = torch.zeros(len(SEEDS), len(ids), dtype=torch.float64, device=DEVICE)
    _drawn[(len(SEEDS),)](words(), ids.to(DEVICE), out, LANE=int(Lane.COUPLING), COUNT=len(ids))
    low, high, position, start = words().cpu()[:, :, None]
    first, second, _, _ = philox((ids, position, start, start + Lane.COUPLING), (low, high))
    assert torch.equal(out.cpu(), (((first << 20) | (second >> 12)).double() + 0.5) * 2.0**-52)


@pytest.mark.parametrize("width", [1, 5, 1024, 1025, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_winners_are_the_hosts(width: int, dtype: torch.dtype) -> None:
    p, ids = laws(width, dtype), torch.arange(width).expand(len(SEEDS), -1)
    there, arrivals = noise_kernel.race(p.to(DEVICE), ids.to(DEVICE), words())
    assert there.tolist() == coupling.choose(p, ids, SEEDS, POSITIONS).tolist()
    noise = exponential_on_device(coordinates(SEEDS, POSITIONS), there.cpu()[:, None])
    torch.testing.assert_close(arrivals.cpu(), (noise / p.gather(1, there.cpu()[:, None]))[:, 0], rtol=1e-14, atol=0)


def test_who_is_impossible_never_arrives() -> None:
    p, ids = torch.zeros(len(SEEDS), 5, device=DEVICE), torch.arange(5, device=DEVICE).expand(len(SEEDS), -1)
    _, arrivals = noise_kernel.race(p, ids, words())
    assert bool(arrivals.isinf().all())


def test_a_drafters_few_candidates_race_with_the_noise_of_their_ids() -> None:
    mass, ids = laws(3000).topk(64)
    there, _ = noise_kernel.race(mass.to(DEVICE), ids.to(DEVICE), words())
    assert there.tolist() == coupling.choose(mass, ids, SEEDS, POSITIONS).tolist()


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specdec.rules import noise_kernel
kernel, given = noise_kernel._block_winners, {"LANE": 4, "BLOCK": 1024}
types = ["*fp32", "*i64", "*i64", "*fp64", "*i64", "i32", "i32", "i32", "i32", "constexpr", "constexpr"]
source = ASTSource(kernel, dict(zip(kernel.arg_names, types, strict=True)), given)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
assert b"ELF" in made.asm["cubin"][:4]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_it_compiles_for_a_gpu() -> None:
    compiled = subprocess.run(
        [sys.executable, "-W", "error", "-c", COMPILED],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert compiled.returncode == 0, compiled.stderr

"""How far a request walks: the files of this project that a streamed request enters in the gateway."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.integration.gateway.stage import Stage, stage

ROOT = Path(__file__).parents[3]
MOST = 59
"""Files of `gateway/` that a request enters; less is better."""


@contextmanager
def files_entered() -> Iterator[set[str]]:
    """The files whose functions are called in any thread that begins, and in this one."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # which ends it


async def streamed(here: Stage) -> int:
    """The chunks of a streamed answer."""
    answer = await here.client.completions.create(model="bytes", prompt="Say it", stream=True)
    return len([chunk async for chunk in answer])


async def test_a_streamed_request_enters_few_files() -> None:
    async with stage() as here:
        await streamed(here)  # which makes what is made once
        with files_entered() as entered:
            assert await streamed(here) > 1
    ours = {path for path in entered if path.startswith(str(ROOT / "gateway"))}
    assert len(ours) > 20  # it was seen
    assert len(ours) <= MOST, sorted(ours)

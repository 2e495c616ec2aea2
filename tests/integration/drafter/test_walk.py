"""How far a request for drafts walks: the files that it enters in a drafter."""

from tests.integration.drafter.served_drafter import Serve
from tests.integration.drafter.verifier_by_hand import opening
from tests.support.walk import walked

MOST = 12
"""Files of `drafter_service/` that a session with one draft enters; less is better."""


async def test_a_session_enters_few_files(serve: Serve) -> None:
    with walked() as walk:
        async with serve() as service, service.verifier() as verifier:
            for name in ("first", "second"):  # the first makes what is made once
                walk.restart()
                await verifier.open(opening(name))
                assert await verifier.drafts(name, 4)
        entered = walk.of("drafter_service")
    assert len(entered) > 5  # it was seen
    assert len(entered) <= MOST, entered

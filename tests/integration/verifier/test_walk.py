"""How far a generation walks: the files that its rounds enter in a verifier."""

from specdec.wire.passes import Opening
from tests.integration.verifier.draft_scripts import oracle
from tests.integration.verifier.house import House
from tests.integration.verifier.passes_client import FAR, make_call, serving
from tests.integration.verifier.target import LENGTH, PROMPT, Target
from tests.support.walk import walked

MOST = 25
"""Files of `verifier_service/` that a generation with drafts enters; less is better."""


async def test_a_generation_with_drafts_enters_few_files(house: House, target: Target) -> None:
    with walked() as walk:
        client = await house.verifier(await house.drafter(oracle(target)))
        async with serving(client) as stream:
            for slot, name in enumerate(("first", "second")):  # the first makes what is made once
                walk.restart()
                await stream.order(Opening(slot, make_call(name), FAR))
                await stream.until(slot)
        entered = walk.of("verifier_service")
    assert stream.output(1) == target.greedy(PROMPT, LENGTH)
    assert len(entered) > 10  # it was seen
    assert len(entered) <= MOST, entered

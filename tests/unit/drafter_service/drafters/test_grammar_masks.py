"""A drafter masks q while masks are cheap. A grammar with slow masks reduces only its session's acceptance."""

from dataclasses import dataclass, field
from typing import Any

from drafter_service.drafters.model_drafter import GrammarMasks
from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.distribution import History
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams


@dataclass(eq=False)
class WrittenSession:
    params: SamplingParams = field(default_factory=lambda: SamplingParams(grammar=Grammar(GrammarKind.REGEX, "ab*c")))
    history: History = field(default_factory=History)
    output: tuple[int, ...] = ()


def test_a_session_is_masked_until_its_masks_take_long() -> None:
    masks, session = GrammarMasks(GrammarCompiler.of_bytes()), WrittenSession()
    asked: Any = session
    masks.history(asked)
    state = masks._states[asked].result()
    assert masks.history(asked).allowed == state.masks(())[0]
    state.seconds = 1.0
    assert masks.history(asked) == session.history

"""Tokens forced by a grammar are drafted without a drafter, as point masses, within γ and the room."""

import pytest

from specdec.grammar.compiler import GrammarCompiler
from specdec.rules.draft import NO_DRAFT, Draft
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall
from verifier_service.backends.batch_plan import Row
from verifier_service.passes.conclude import MOST, with_forced

STATE = GrammarCompiler.of_bytes().compile(Grammar(GrammarKind.REGEX, "yes, (sir|madam) and so on and so forth"))
PROMPT = (1, 2)


def row(mode: Mode, gamma: int | None = None) -> Row:
    call = GenerationCall(
        tokens=PROMPT,
        prompt_len=len(PROMPT),
        sampling=SamplingParams(),
        max_tokens=64,
        stop_token_ids=(),
        speculation=Speculation(mode, gamma),
    )
    return Row(call, "s", 0.0, 64, PROMPT, goal=2, grammar=STATE)


def forced(mode: Mode, output: bytes, room: int = 60, gamma: int | None = None, draft: Draft = NO_DRAFT) -> Draft:
    return with_forced(draft, row(mode, gamma), (*PROMPT, *output), room)


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK])
def test_forced_text_is_drafted_as_point_masses(mode: Mode) -> None:
    draft = forced(mode, b"ye")
    assert bytes(draft.tokens) == b"s, "
    assert [(each.ids.tolist(), len(each.weights)) for each in draft.probs] == [([115], 1), ([44], 1), ([32], 1)]


def test_coupled_drafts_need_no_distribution() -> None:
    assert forced(Mode.COUPLED, b"").probs == ()


def test_forced_text_stands_behind_what_was_drafted() -> None:
    assert bytes(forced(Mode.COUPLED, b"yes, ", draft=Draft(tuple(b"m"))).tokens[:5]) == b"madam"


@pytest.mark.parametrize(
    ("arguments", "length"), [({"room": 2}, 2), ({"gamma": 1}, 1), ({"gamma": 0}, 0), ({"room": 0}, 0), ({}, 5)]
)
def test_it_keeps_within_the_room_and_gamma(arguments: dict[str, int], length: int) -> None:
    assert len(forced(Mode.COUPLED, b"", **arguments).tokens) == length


def test_a_round_takes_no_more_than_so_many() -> None:
    assert len(forced(Mode.COUPLED, b"yes, s").tokens) == MOST


def test_plain_decoding_drafts_nothing() -> None:
    assert forced(Mode.OFF, b"") is NO_DRAFT

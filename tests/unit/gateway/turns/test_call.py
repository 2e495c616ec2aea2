"""A grammar goes to verifiers that follow grammars, and to no others."""

import pytest

from gateway.request import GenerationRequest, TextPrompt
from gateway.turns.call import make_call
from specdec.errors import UnsupportedParameter
from specdec.rules.grammar import Grammar, GrammarKind
from specdec.rules.params import Mode, SamplingParams
from tests.gateway_fakes import facts

GRAMMAR = Grammar(GrammarKind.REGEX, "a+")
REQUEST = GenerationRequest(
    prompt=TextPrompt("x"), sampling=SamplingParams(grammar=GRAMMAR), grammar_param="guided_regex"
)


def test_a_call_has_the_grammar_of_its_request() -> None:
    assert make_call(REQUEST, (1,), facts(), Mode.BLOCK).sampling.grammar == GRAMMAR


def test_a_verifier_that_would_ignore_a_grammar_gets_none() -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        make_call(REQUEST, (1,), facts(grammars=False), Mode.BLOCK)
    assert refused.value.param == "guided_regex"

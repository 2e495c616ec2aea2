"""A grammar crosses both hops unchanged, or is refused."""

import pytest

from specdec.errors import FieldInvalid
from specdec.protos.common.v1 import common_pb2 as pb
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams
from specdec.wire.params import grammar_to_pb, sampling_from_pb, sampling_to_pb


@pytest.mark.parametrize("kind", GrammarKind)
def test_a_grammar_comes_back_as_it_was(kind: GrammarKind) -> None:
    params = SamplingParams(grammar=Grammar(kind, "é+", "</think>", 5))
    assert sampling_from_pb(sampling_to_pb(params)) == params


def test_no_grammar_stays_none() -> None:
    assert sampling_from_pb(sampling_to_pb(SamplingParams())).grammar is None


def test_another_text_than_its_digest_s_is_refused() -> None:
    message = grammar_to_pb(Grammar(GrammarKind.REGEX, "a"))
    assert message is not None
    message.text = "b"
    with pytest.raises(FieldInvalid, match="digest"):
        sampling_from_pb(pb.SamplingParams(temperature=1.0, top_p=1.0, repetition_penalty=1.0, grammar=message))


def test_a_kind_of_a_newer_version_is_refused() -> None:
    with pytest.raises(FieldInvalid, match="kind"):
        sampling_from_pb(
            pb.SamplingParams(
                temperature=1.0,
                top_p=1.0,
                repetition_penalty=1.0,
                grammar=pb.Grammar(kind=99, text="a"),  # type: ignore[arg-type]
            )
        )

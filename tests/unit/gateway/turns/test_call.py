"""A request's drafter, predicted output and output format reach the verifier's call."""

from dataclasses import replace

import pytest

from gateway.request import GenerationRequest, TextPrompt
from gateway.turns.call import make_call
from specdec.errors import FieldInvalid, RequestError, UnsupportedParameter
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.speculation import Mode, TreeOptions
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import MAX_ANSWER_LOGPROBS, SamplingParams
from specdec.wire.generation import DrafterState
from tests.support.gateway_fakes import facts

INFO = facts(
    drafter_names=("10.0.0.7:50052", "model", "ngram", "small"),
    drafters=(DrafterState("10.0.0.7:50052", "ready", "small", "model"),),
)
GRAMMAR = Grammar(GrammarKind.REGEX, "a+")
REQUEST = GenerationRequest(
    prompt=TextPrompt("x"), sampling=SamplingParams(grammar=GRAMMAR), grammar_param="guided_regex"
)


def asking(drafter: str) -> GenerationRequest:
    return GenerationRequest(prompt=TextPrompt("x"), sampling=SamplingParams(), drafter=drafter, prediction="text")


@pytest.mark.parametrize("drafter", ["", "ngram", "small", "10.0.0.7:50052"])
def test_a_name_that_the_verifier_knows_is_asked_for(drafter: str) -> None:
    call = make_call(asking(drafter), (1,), INFO, Mode.REJECTION, (7, 8))
    assert (call.speculation.drafter, call.speculation.prediction) == (drafter, (7, 8))


def test_another_name_is_refused_with_all_names_but_no_addresses() -> None:
    with pytest.raises(FieldInvalid, match=r"no drafter 'nobody'; there are model, ngram, small$") as refused:
        make_call(asking("nobody"), (1,), INFO, Mode.REJECTION)
    assert refused.value.param == "speculation.drafter"


def test_a_call_has_the_grammar_of_its_request() -> None:
    assert make_call(REQUEST, (1,), facts(), Mode.BLOCK).sampling.grammar == GRAMMAR


def test_a_verifier_that_would_ignore_a_grammar_gets_none() -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        make_call(REQUEST, (1,), facts(grammars=False), Mode.BLOCK)
    assert refused.value.param == "guided_regex"


def test_a_prediction_that_shall_draft_must_be_there() -> None:
    request = GenerationRequest(prompt=TextPrompt("x"), sampling=SamplingParams(), drafter="prediction")
    with pytest.raises(FieldInvalid, match="needs a prediction"):
        make_call(request, (1,), facts(drafter_names=("prediction",)), Mode.REJECTION)


def with_tree(**changes: object) -> GenerationRequest:
    tree = TreeOptions(8, 2, 3, drafters=("model", "ngram"))
    return GenerationRequest(**{"prompt": TextPrompt("x"), "sampling": SamplingParams(), "tree": tree, **changes})  # type: ignore[arg-type]


def test_a_tree_reaches_the_call() -> None:
    assert make_call(with_tree(), (1,), INFO, Mode.REJECTION).speculation.tree == with_tree().tree


@pytest.mark.parametrize(
    ("changes", "served", "mode", "param"),
    [
        ({}, {"trees": False}, Mode.REJECTION, "speculation.tree"),
        ({"sampling": SamplingParams(grammar=GRAMMAR)}, {}, Mode.REJECTION, "speculation.tree"),
        ({}, {}, Mode.BLOCK, "speculation.tree"),
        ({}, {"drafter_names": ("model",)}, Mode.REJECTION, "speculation.tree.drafters"),
    ],
)
def test_a_tree_that_cannot_be_is_refused_by_name(
    changes: dict[str, object], served: dict[str, object], mode: Mode, param: str
) -> None:
    with pytest.raises(RequestError) as refused:
        make_call(with_tree(**changes), (1,), replace(INFO, **served), mode)  # type: ignore[arg-type]
    assert refused.value.param == param


TREE = TreeOptions(8, 2, 4)
GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize(
    ("changes", "mode", "tree"),
    [
        ({}, Mode.REJECTION, TREE),
        ({}, Mode.COUPLED, TREE),
        ({"lenience": 1.0}, Mode.REJECTION, TREE),
        ({"tree": TreeOptions(4, 2, 2)}, Mode.REJECTION, TreeOptions(4, 2, 2)),
        ({"sampling": SamplingParams()}, Mode.REJECTION, None),
        ({}, Mode.OFF, None),
        ({}, Mode.BLOCK, None),
        ({"gamma": 3}, Mode.REJECTION, None),
        ({"policy": GammaPolicy(PolicyKind.EGAG)}, Mode.REJECTION, None),
        ({"lenience": 0.5}, Mode.REJECTION, None),
        ({"prediction": "text"}, Mode.REJECTION, None),
        ({"sampling": SamplingParams(temperature=0.0, grammar=GRAMMAR)}, Mode.REJECTION, None),
    ],
)
def test_the_verifiers_tree_is_of_greedy_requests_that_choose_nothing(
    changes: dict[str, object], mode: Mode, tree: TreeOptions | None
) -> None:
    request = GenerationRequest(**{"prompt": TextPrompt("x"), "sampling": GREEDY, **changes})  # type: ignore[arg-type]
    call = make_call(request, (1,), facts(tree=TREE, lenience=0.5), mode)
    assert call.speculation.tree == tree


def test_a_default_tree_whose_drafters_are_not_there_is_left_out() -> None:
    request = GenerationRequest(prompt=TextPrompt("x"), sampling=GREEDY)
    tree = replace(TREE, drafters=("model", "suffix"))
    assert make_call(request, (1,), replace(INFO, tree=tree), Mode.REJECTION).speculation.tree is None


@pytest.mark.parametrize(
    ("asked", "mode", "lenience"),
    [(None, Mode.REJECTION, 0.5), (1.0, Mode.REJECTION, 1.0), (0.25, Mode.REJECTION, 0.25), (None, Mode.BLOCK, 1.0)],
)
def test_the_verifiers_lenience_is_of_requests_that_choose_none(
    asked: float | None, mode: Mode, lenience: float
) -> None:
    request = GenerationRequest(prompt=TextPrompt("x"), sampling=SamplingParams(), lenience=asked)
    speculation = make_call(request, (1,), facts(lenience=0.5), mode).speculation
    assert (speculation.lenience, speculation.lossy) == (lenience, lenience < 1.0)


@pytest.mark.parametrize(("prompts", "n", "fits"), [(1, 1, True), (1, 2, False), (2, 1, False)])
def test_the_log_probabilities_of_all_choices_are_bounded_together(prompts: int, n: int, fits: bool) -> None:
    more = (TextPrompt("y"),) * (prompts - 1)
    asked = GenerationRequest(
        prompt=TextPrompt("x"), sampling=SamplingParams(), prompt_logprobs=20, more_prompts=more, n=n
    )
    own, info = asked.choices()[0], facts(prompt_logprobs=True, context_length=10_000)
    if fits:
        assert make_call(own, (1,) * 3000, info, Mode.OFF).prompt_logprobs == 20
        return
    with pytest.raises(FieldInvalid) as refused:
        make_call(own, (1,) * 3000, info, Mode.OFF)
    assert refused.value.param == "prompt_logprobs"


@pytest.mark.parametrize(("logprobs", "n"), [(20, 1), (20, 16), (0, 16)])
def test_the_log_probabilities_of_an_answer_are_bounded(logprobs: int, n: int) -> None:
    info = facts(context_length=2 * MAX_ANSWER_LOGPROBS)
    most = MAX_ANSWER_LOGPROBS // (n * (logprobs + 1))
    asked = replace(asking(""), logprobs=logprobs, n=n)
    assert make_call(replace(asked, max_tokens=most), (1,), info, Mode.OFF).max_tokens == most
    assert make_call(asked, (1,), info, Mode.OFF).max_tokens == most, "as much as there is room for"
    longer = replace(asked, max_tokens=most + 1)
    assert make_call(longer, (1,), info, Mode.OFF, clamp=True).max_tokens == most
    assert make_call(replace(longer, logprobs=None), (1,), info, Mode.OFF).max_tokens == most + 1
    with pytest.raises(FieldInvalid, match="log probabilities") as refused:
        make_call(longer, (1,), info, Mode.OFF)
    assert refused.value.param == "logprobs"

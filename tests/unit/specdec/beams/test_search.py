"""Beam search by the rules alone equals `generate` of transformers, and drafts change no result."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specdec.beams.options import BeamOptions, EarlyStopping
from specdec.beams.search import BeamSearch, verified
from specdec.errors import FieldInvalid
from tests.support.tiny_models import make_tiny_model

PENALTIES = (1.0, 0.0, 2.0, -1.0)
STOPPING = {EarlyStopping.ESTIMATE: False, EarlyStopping.FULL: True, EarlyStopping.NEVER: "never"}
TOKENS = 8
Rows = dict[tuple[int, ...], torch.Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """Return a tiny model that often ends."""
    folder = make_tiny_model(tmp_path_factory.mktemp("beams") / "tiny", seed=3, vocab_size=40, spread=0.3)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder).eval()
    return loaded


def rows_of(model: PreTrainedModel, prompt: list[int], beams: list[tuple[int, ...]]) -> Rows:
    """Return the log probabilities after each beam."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *beam] for beam in beams])).logits[:, -1]
    return dict(zip(beams, logits.float().log_softmax(-1), strict=True))


def searched(model: PreTrainedModel, prompt: list[int], search: BeamSearch) -> BeamSearch:
    while not search.done:
        search, steps = verified(search, rows_of(model, prompt, [beam.tokens for beam in search.running]))
        assert steps == 1
    return search


@pytest.mark.parametrize("stopping", EarlyStopping)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("width", [2, 4])
def test_it_equals_generate(model: PreTrainedModel, width: int, penalty: float, stopping: EarlyStopping) -> None:
    for seed in range(6):
        prompt = [random.Random(seed).randrange(1, 40) for _ in range(5)]
        ends = list(range(1 + seed % 3 * 3))  # of several ends, some beams end in most steps
        made = model.generate(
            torch.tensor([prompt]), num_beams=width, do_sample=False, max_new_tokens=TOKENS, length_penalty=penalty,
            early_stopping=STOPPING[stopping], eos_token_id=ends, pad_token_id=0, output_scores=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        best = searched(model, prompt, BeamSearch(BeamOptions(width, penalty, stopping), frozenset(ends), TOKENS)).best
        assert list(best.tokens) == made.sequences[0, len(prompt) :].tolist()
        assert best.score == pytest.approx(float(made.sequences_scores[0]), abs=1e-4)


def test_one_beam_is_greedy_decoding(model: PreTrainedModel) -> None:
    made = model.generate(torch.tensor([[3, 5, 1]]), do_sample=False, max_new_tokens=TOKENS, eos_token_id=0,
                          pad_token_id=0)  # fmt: skip
    search = BeamSearch(BeamOptions(1), frozenset(), TOKENS)
    tokens = list(searched(model, [3, 5, 1], search).best.tokens)
    expected = made[0, 3:].tolist()
    assert tokens[: len(expected)] == expected


def _tokens(search: BeamSearch) -> list[list[tuple[int, ...]]]:
    return [[each.tokens for each in beams] for beams in (search.running, search.finished)]


@pytest.mark.parametrize("width", [2, 4])
def test_proposed_beams_save_passes_and_change_nothing(model: PreTrainedModel, width: int) -> None:
    prompt, draw = [3, 5, 1, 7], random.Random(1)
    start = BeamSearch(BeamOptions(width), frozenset({0}), TOKENS)
    plain, states = start, [start]  # their scores depend on the rows of a pass, in the last bits
    while not plain.done:
        plain = plain.advanced(torch.stack([*rows_of(model, prompt, [each.tokens for each in plain.running]).values()]))
        states.append(plain)
    search, passes = start, 0
    while not search.done:
        at = next(at for at, state in enumerate(states) if _tokens(state) == _tokens(search))
        later = [beam.tokens for state in states[at + 1 : at + 4] for beam in state.running]
        proposed = [each for each in later if draw.random() < 0.9]  # a step with a beam left out is not accepted
        beams = dict.fromkeys([*(beam.tokens for beam in search.running), *proposed, (9,) * (search.length + 1)])
        search, _ = verified(search, {each: rows_of(model, prompt, [each])[each] for each in beams})
        passes += 1
    assert [each.tokens for each in search.finished] == [each.tokens for each in plain.finished]
    assert passes < len(states) - 1


@pytest.mark.parametrize(
    ("options", "field"),
    [({"width": 0}, "beam_width"), ({"width": 17}, "beam_width"),
     ({"width": 2, "length_penalty": float("nan")}, "length_penalty")],
)  # fmt: skip
def test_options_out_of_range_are_refused_by_name(options: dict[str, float], field: str) -> None:
    with pytest.raises(FieldInvalid) as refused:
        BeamOptions(**options)  # type: ignore[arg-type]
    assert refused.value.param == field

"""Requests that would harm the process are refused by name."""

from dataclasses import replace

import pytest

from specdec.errors import (
    ContextLengthExceeded,
    FieldInvalid,
    FieldRequired,
    GammaTooLarge,
    RequestError,
    TokenOutOfRange,
    UnsupportedParameter,
)
from specdec.rules.blocks import adapter_end
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import Adapter, VerifierInfo
from tests.unit.verifier_service.verifier_fakes import make_call
from verifier_service.passes.generations import check, length_limit, with_own_salt

INFO = VerifierInfo(
    model="m",
    tokenizer_hash="t",
    vocab_size=10,
    context_length=8,
    end_token_ids=(),
    gamma_max=4,
    system_fingerprint="f",
    adapters=(Adapter("sql", "f sql"),),
)


@pytest.mark.parametrize(
    ("changes", "error", "param"),
    [
        ({"session_id": ""}, FieldRequired, "session_id"),
        ({"tokens": ()}, FieldRequired, "tokens"),
        ({"prompt_len": 0}, FieldInvalid, "prompt_len"),
        ({"prompt_len": 4}, FieldInvalid, "prompt_len"),
        ({"tokens": (1, 2, 10)}, TokenOutOfRange, "tokens"),
        ({"tokens": (1, 2, -1)}, TokenOutOfRange, "tokens"),
        ({"stop_token_ids": (10,)}, TokenOutOfRange, "stop_token_ids"),
        ({"speculation": Speculation(prediction=(3, 10))}, TokenOutOfRange, "speculation.prediction"),
        ({"sampling": SamplingParams(end_token_ids=(11,))}, TokenOutOfRange, "sampling.end_token_ids"),
        ({"sampling": SamplingParams(logit_bias={10: 1.0})}, TokenOutOfRange, "sampling.logit_bias"),
        ({"sampling": SamplingParams(allowed_token_ids=(10,))}, TokenOutOfRange, "sampling.allowed_token_ids"),
        ({"sampling": SamplingParams(banned_token_ids=(10,))}, TokenOutOfRange, "sampling.banned_token_ids"),
        ({"sampling": SamplingParams(banned_token_ids=tuple(range(10)))}, FieldInvalid, "banned_token_ids"),
        ({"logprobs": 21}, FieldInvalid, "logprobs"),
        ({"tokens": (1,) * 8, "prompt_len": 8}, ContextLengthExceeded, "tokens"),
        ({"tokens": (1,) * 9, "prompt_len": 3}, ContextLengthExceeded, "tokens"),
        ({"speculation": Speculation(Mode.REJECTION, 5)}, GammaTooLarge, "speculation.gamma"),
        ({"adapter": "law"}, UnsupportedParameter, "adapter"),
    ],
)
def test_a_broken_limit_is_named(changes: dict[str, object], error: type[RequestError], param: str) -> None:
    with pytest.raises(error) as caught:
        check(make_call(**changes), INFO)
    assert caught.value.param == param


def test_what_keeps_the_limits_passes() -> None:
    check(make_call(tokens=(1,) * 7, prompt_len=7, speculation=Speculation(Mode.BLOCK, 4)), INFO)
    check(make_call(tokens=(1,) * 8, prompt_len=3), INFO)
    check(make_call(tokens=(1,) * 4, prompt_len=3, adapter="sql"), INFO)


def test_a_verifier_without_adapters_refuses_one_by_name() -> None:
    with pytest.raises(UnsupportedParameter, match="this verifier has no adapter 'sql'"):
        check(make_call(adapter="sql"), replace(INFO, adapters=()))


def test_calls_of_an_adapter_have_salts_of_their_own() -> None:
    adapters = (*INFO.adapters, Adapter("law", "f law"))
    salts = {
        (name, salt): with_own_salt(make_call(adapter=name, cache_salt=salt), adapters).cache_salt
        for name in ("", "sql", "law")
        for salt in ("", "s")
    }
    assert len(set(salts.values())) == len(salts)
    assert [salts["", salt] for salt in ("", "s")] == ["", "s"]
    given = make_call(adapter="sql", cache_salt=salts["sql", "s"])
    assert with_own_salt(given, adapters) is given


@pytest.mark.parametrize("adapter", ["", "law"])
def test_a_salt_of_another_adapter_is_refused(adapter: str) -> None:
    adapters = (*INFO.adapters, Adapter("law", "f law"))
    call = make_call(adapter=adapter, cache_salt=f"s{adapter_end('f sql')}")
    with pytest.raises(FieldInvalid) as caught:
        with_own_salt(call, adapters)
    assert caught.value.param == "cache_salt"


def test_the_end_is_the_context_or_max_tokens_whichever_is_first() -> None:
    assert length_limit(make_call(max_tokens=4), 100) == 7
    assert length_limit(make_call(max_tokens=400), 100) == 100

"""The sampling parameters of the HTTP API: OpenAI's, with vLLM's additions and ours. A new one is added here."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from gateway.http.requests.body import Body
from gateway.http.requests.fields import MAX_INT, Ids, Natural
from gateway.lists import MAX_IDS
from gateway.request import sampling_params
from specdec.errors import FieldInvalid
from specdec.sampling.params import MAX_SEED, SamplingParams


def _number(**limits: float) -> WithJsonSchema:
    """Return the JSON schema of a number. SamplingParams checks the value itself."""
    return WithJsonSchema({"type": "number", **limits})


def _parse_top_k(value: int) -> int:
    """Read vLLM's -1, which means no limit, as 0."""
    return 0 if value == -1 else value


_BIAS_SCHEMA = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": MAX_IDS,
}


def _parse_bias(value: dict[str, float]) -> dict[int, float]:
    if len(value) > MAX_IDS:
        raise FieldInvalid(f"logit_bias takes at most {MAX_IDS} token ids, got {len(value)}", "logit_bias")
    for token in value:
        if not token.isascii() or not token.isdecimal() or len(token) > 10:
            raise FieldInvalid(f"logit_bias: {token!r} is not a token id", "logit_bias")
    return {int(token): bias for token, bias in value.items()}


TopK = Annotated[
    int, AfterValidator(_parse_top_k), WithJsonSchema({"type": "integer", "minimum": -1, "maximum": MAX_INT})
]


class SamplingBody(Body):
    """The fields of SamplingParams that a caller may set; one that is left out has its default there."""

    temperature: Annotated[float, _number(minimum=0, maximum=2)] | None = None
    top_p: Annotated[float, _number(minimum=0, maximum=1)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, _number(minimum=0, maximum=1)] | None = None
    seed: Annotated[int, WithJsonSchema({"type": "integer", "minimum": -MAX_SEED - 1, "maximum": MAX_SEED})] | None = (
        None
    )
    presence_penalty: Annotated[float, _number(minimum=-2, maximum=2)] | None = None
    frequency_penalty: Annotated[float, _number(minimum=-2, maximum=2)] | None = None
    repetition_penalty: Annotated[float, _number(exclusiveMinimum=0, maximum=2)] | None = None
    logit_bias: Annotated[dict[str, float], AfterValidator(_parse_bias), WithJsonSchema(_BIAS_SCHEMA)] | None = None
    allowed_token_ids: Annotated[Ids, Field(min_length=1)] | None = None
    banned_token_ids: Ids | None = None
    min_tokens: Natural | None = None

    def sampling(self) -> SamplingParams:
        """The value, with a random seed where none is given; raises FieldInvalid."""
        return sampling_params(self.given())

    def given(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        fields = {name: getattr(self, name) for name in SamplingBody.model_fields}
        return {name: value for name, value in fields.items() if value is not None}

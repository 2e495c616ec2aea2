"""The limits of the model and the server that a call must keep before it may touch the model."""

from collections.abc import Iterable, Iterator

from specdec.errors import ContextLengthExceeded, FieldInvalid, FieldRequired, GammaTooLarge, TokenOutOfRange
from specdec.rules.params import check_logprobs
from specdec.wire.generation import GenerationCall, VerifierInfo


def check(call: GenerationCall, info: VerifierInfo) -> None:
    """Refuse a call that would hurt the process or the other sessions of a batch.

    Raises:
        RequestError: the call breaks a limit; the error names the field.
    """
    if not call.session_id:
        raise FieldRequired("session_id must not be empty", "session_id")
    if not call.tokens:
        raise FieldRequired("tokens must not be empty", "tokens")
    if not 0 < call.prompt_len <= len(call.tokens):
        raise FieldInvalid(f"prompt_len must be in 1..{len(call.tokens)}, got {call.prompt_len}", "prompt_len")
    _check_length(call, info.context_length)
    for field, ids in _ids(call):
        _check_ids(field, ids, info.vocab_size)
    call.sampling.check_choice(info.vocab_size)
    check_logprobs(call.logprobs)
    gamma = call.speculation.gamma
    if gamma is not None and gamma > info.gamma_max:
        raise GammaTooLarge(f"gamma is at most {info.gamma_max} here, got {gamma}", "speculation.gamma")


def length_limit(call: GenerationCall, context_length: int) -> int:
    """The sequence length, in tokens, at which the generation ends at the latest."""
    return min(call.prompt_len + call.max_tokens, context_length)


def _check_length(call: GenerationCall, context_length: int) -> None:
    if call.prompt_len >= context_length or len(call.tokens) > context_length:
        longest = max(call.prompt_len, len(call.tokens))
        raise ContextLengthExceeded(f"{longest} tokens do not fit a context of {context_length}", "tokens")


def _ids(call: GenerationCall) -> Iterator[tuple[str, Iterable[int]]]:
    """Each field that holds token ids, with its ids."""
    yield "tokens", call.tokens
    yield "stop_token_ids", call.stop_token_ids
    for field, ids in call.sampling.named_ids.items():
        yield f"sampling.{field}", ids


def _check_ids(field: str, ids: Iterable[int], vocab_size: int) -> None:
    outside = next((token for token in ids if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise TokenOutOfRange(f"{field}: {outside} is not in 0..{vocab_size - 1}", field)

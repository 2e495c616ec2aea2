"""What a call may ask for, and what is made of it where it leaves a choice."""

from dataclasses import replace

from specdec.errors import ContextLengthExceeded, FieldInvalid, FieldRequired, GammaTooLarge, UnsupportedParameter
from specdec.planning.gamma_policy import AUTO, GammaPolicy, PolicyKind
from specdec.rules.speculation import Mode
from specdec.sampling.params import check_ids, check_logprobs, check_prompt_logprobs
from specdec.wire.generation import GenerationCall, VerifierInfo


def greedy_as_coupled(call: GenerationCall) -> GenerationCall:
    """The call in mode coupled where that commits the same tokens as its own mode for less work.

    At temperature 0 every exact mode commits the target's likeliest tokens, and coupled drafts need no q̂.
    """
    exact = call.speculation.mode is not Mode.OFF and not call.speculation.lossy
    if call.sampling.temperature > 0.0 or not exact:
        return call
    return replace(call, speculation=replace(call.speculation, mode=Mode.COUPLED))


def with_policy(call: GenerationCall, default: GammaPolicy) -> GenerationCall:
    """The call with the default policy where it leaves the draft length of its chains open."""
    asked = call.speculation
    if asked.gamma is not None or asked.tree is not None or asked.policy != AUTO:
        return call
    return replace(call, speculation=replace(asked, policy=default))


def fixed_gamma(call: GenerationCall, default: int | None, gamma_max: int) -> int | None:
    """The γ that the call or the settings fix, or a tree's nodes; 0 is plain decoding, None follows measured costs."""
    if call.speculation.mode is Mode.OFF:
        return 0
    if call.speculation.tree is not None:
        return call.speculation.tree.nodes
    if call.speculation.gamma is not None:
        return call.speculation.gamma
    policy = call.speculation.policy
    if policy.policy is PolicyKind.EGAG:
        return policy.most(gamma_max)  # the drafter ends drafts before
    if policy.policy is PolicyKind.OPTIMAL or default is None:
        return None
    return min(default, policy.most(gamma_max))


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
    check_ids(call.tokens, "tokens", info.vocab_size)
    check_ids(call.stop_token_ids, "stop_token_ids", info.vocab_size)
    check_ids(call.speculation.prediction, "speculation.prediction", info.vocab_size)
    for field, ids in call.sampling.named_ids.items():
        check_ids(ids, f"sampling.{field}", info.vocab_size)
    call.sampling.check_choice(info.vocab_size)
    check_logprobs(call.logprobs)
    check_prompt_logprobs(call.prompt_logprobs, call.prompt_len)
    _check_supported(call, info)
    gamma = call.speculation.gamma
    if gamma is not None and gamma > info.gamma_max:
        raise GammaTooLarge(f"gamma is at most {info.gamma_max} here, got {gamma}", "speculation.gamma")
    call.speculation.policy.check_limit(info.gamma_max)


def length_limit(call: GenerationCall, context_length: int) -> int:
    """The sequence length, in tokens, at which the generation ends at the latest."""
    return min(call.prompt_len + call.max_tokens, context_length)


def _check_supported(call: GenerationCall, info: VerifierInfo) -> None:
    if call.prompt_logprobs is not None and not info.prompt_logprobs:
        raise UnsupportedParameter("the backend of this verifier scores no prompts", "prompt_logprobs")
    if call.speculation.tree is not None and not info.trees:
        raise UnsupportedParameter("the backend of this verifier judges no trees", "speculation.tree")
    if call.speculation.tree is not None and call.sampling.grammar is not None:
        raise UnsupportedParameter("trees are not drafted under a grammar", "speculation.tree")


def _check_length(call: GenerationCall, context_length: int) -> None:
    if call.prompt_len >= context_length or len(call.tokens) > context_length:
        longest = max(call.prompt_len, len(call.tokens))
        raise ContextLengthExceeded(f"{longest} tokens do not fit a context of {context_length}", "tokens")

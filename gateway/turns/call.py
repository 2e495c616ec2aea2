"""Builds the verifier's call and the turn's key from a request: checks it against the model and fills in defaults."""

import asyncio
from collections.abc import Collection, Container, Sequence
from dataclasses import replace

from gateway.callers.caller import cache_domain
from gateway.models.served import ServedModels
from gateway.request import GenerationRequest, new_id
from gateway.store.sessions import SessionStore
from gateway.store.values import SessionState, SessionView, TurnView
from gateway.text.detokenizer import Decode
from gateway.text.prompt_encoder import request_memory
from gateway.tools.custom import as_function
from gateway.tools.message_reader import MessageReader, joined_message
from gateway.tools.reading import Reading
from gateway.tools.values import ToolCall
from gateway.turns.turn import check_session_id, header_from_bytes
from specdec.beams.options import candidates
from specdec.errors import ContextLengthExceeded, FieldInvalid, FieldRequired, GammaTooLarge, UnsupportedParameter
from specdec.planning.gamma_policy import AUTO
from specdec.rules.speculation import Mode, Speculation, TreeOptions
from specdec.sampling.params import MAX_ANSWER_LOGPROBS, SamplingParams, check_ids, check_prompt_logprobs
from specdec.wire.generation import GenerationCall, VerifierInfo

_QUICK_BYTES = 64 * 1024
"""Memory of a prompt whose digest takes less than a few milliseconds."""


def make_call(
    request: GenerationRequest,
    prompt: Sequence[int],
    info: VerifierInfo,
    mode: Mode,
    prediction: Sequence[int] = (),
    *,
    clamp: bool = False,
) -> GenerationCall:
    """Return the call for the whole generation; session, epoch, client and user are set later.

    Args:
        prompt: every token before the output: the session's history, then the request's own prompt.
        info: facts of the verifier under the fingerprint of the turn, which determines the adapter.
        mode: default verification mode.
        prediction: output tokens that the request predicts.
        clamp: whether to lower a max_tokens above the room left in the context, instead of refusing it.

    Raises:
        TokenOutOfRange: a token id is not in the vocabulary.
        ContextLengthExceeded: the prompt, or prompt and max_tokens together, do not fit the context.
        GammaTooLarge: gamma is over the model's limit.
        FieldInvalid: no token may be drawn, prompt or output is too long to be scored, the mode allows no lenience,
            or no drafter has the requested name.
        FieldRequired: the prompt has no tokens after tokenization.
        UnsupportedParameter: the verifiers do not support the request's grammar, tree or prompt scores, or the
            request combines a grammar with a tree.
    """
    if not prompt:
        raise FieldRequired("prompt has no tokens", "prompt")
    max_tokens = _scored_tokens(request, _max_tokens(request, len(prompt), info.context_length, clamp), clamp)
    check_ids(prompt, "prompt", info.vocab_size)
    check_ids(request.stop_token_ids, "stop_token_ids", info.vocab_size)
    for name, ids in request.sampling.named_ids.items():
        check_ids(ids, name, info.vocab_size)
    if request.gamma is not None and request.gamma > info.gamma_max:
        raise GammaTooLarge(f"gamma must be at most {info.gamma_max}, got {request.gamma}", "speculation.gamma")
    request.policy.check_limit(info.gamma_max)
    if request.drafter == "prediction" and not request.prediction:
        raise FieldInvalid("drafter prediction needs a prediction", "speculation.drafter")
    _check_drafters(request, info)
    check_prompt_logprobs(request.prompt_logprobs, request.number * len(prompt))  # one answer has those of all
    if request.prompt_logprobs is not None and not info.prompt_logprobs:
        raise UnsupportedParameter("prompt_logprobs: this model's verifiers score no prompts", "prompt_logprobs")
    if request.sampling.bad_words and not info.bad_words:
        raise UnsupportedParameter("bad_words: this model's verifiers keep none out", "bad_words")
    if request.sampling.grammar and not info.grammars:
        param = request.grammar_param or "thinking_budget"
        raise UnsupportedParameter(f"{param}: the verifiers of this model follow no grammar", param)
    ends = () if request.ignore_eos else info.end_token_ids
    stop_token_ids = tuple(dict.fromkeys((*ends, *request.stop_token_ids)))
    sampling = _sampling(request, stop_token_ids, info)
    sampling.check_choice(info.vocab_size)
    return GenerationCall(
        tokens=tuple(prompt),
        prompt_len=len(prompt),
        sampling=sampling,
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        speculation=_speculation(request, info, _mode(request, mode), tuple(prediction)),
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        priority=request.priority.level,
        cache_salt=cache_domain(request.tenant, request.cache_salt, info.adapter and info.system_fingerprint),
        beams=request.beams,
        adapter=info.adapter,
    )


def with_ends(info: VerifierInfo, request: GenerationRequest, special: Collection[str]) -> VerifierInfo:
    """Return the facts with the ids that end the output of a request.

    The chat template's end of a turn is none of them if a stop string has the name of a special token: the caller then
    chooses where turns end. A grammar ends at all of them.

    Args:
        info: facts of the verifier.
        request: the request.
        special: names of the model's special tokens.
    """
    turn_ends = () if request.sampling.grammar else info.turn_end_token_ids
    if not turn_ends or not any(name in stop for stop in request.stop for name in special):
        return info
    return replace(info, end_token_ids=tuple(each for each in info.end_token_ids if each not in turn_ends))


def _sampling(request: GenerationRequest, ends: tuple[int, ...], info: VerifierInfo) -> SamplingParams:
    """Return the sampling parameters of a call; a beam search has those of plain greedy decoding.

    Raises:
        UnsupportedParameter, FieldInvalid: the verifiers cannot run the search.
    """
    beams = request.beams
    if beams is None:
        return replace(request.sampling, end_token_ids=ends)
    if not info.beams:
        raise UnsupportedParameter("use_beam_search: this model's verifiers search no beams", "use_beam_search")
    if candidates(beams.width, len(ends)) > info.vocab_size:
        raise FieldInvalid(f"beam_width: {info.vocab_size} ids are too few for {beams.width} beams", "beam_width")
    return SamplingParams(temperature=0.0, seed=request.sampling.seed, end_token_ids=ends)


def _speculation(
    request: GenerationRequest, info: VerifierInfo, mode: Mode, prediction: tuple[int, ...]
) -> Speculation:
    """Return the request's speculation options, with the verifiers' defaults for those left open."""
    tree = request.tree or _default_tree(request, info, mode)
    lenience = 1.0 if request.beams else request.lenience
    if lenience is None:
        lenience = info.lenience if mode is Mode.REJECTION and tree is None else 1.0
    return Speculation(
        mode,
        request.gamma,
        lenience,
        request.drafter,
        prediction,
        detail=request.detail,
        policy=request.policy,
        tree=tree,
    )


def _default_tree(request: GenerationRequest, info: VerifierInfo, mode: Mode) -> TreeOptions | None:
    """Return the verifiers' default tree for a greedy request, or None if the request excludes trees."""
    tree, sampling = info.tree, request.sampling
    if tree is None or request.beams or sampling.temperature > 0.0 or mode not in (Mode.REJECTION, Mode.COUPLED):
        return None
    chain = request.gamma is not None or request.policy != AUTO or request.prediction or sampling.grammar
    if chain or request.lenience not in (None, 1.0) or (request.drafter and tree.drafters):
        return None
    return tree if info.trees and set(tree.drafters) <= set(info.drafter_names) else None


def _check_drafters(request: GenerationRequest, info: VerifierInfo) -> None:
    """Raise for unknown drafter names, and for trees that the verifiers or the request rule out."""
    tree = request.tree
    named = [("speculation.drafter", request.drafter)] if request.drafter else []
    if tree is not None:
        named += [("speculation.tree.drafters", name) for name in tree.drafters]
        if not info.trees:
            raise UnsupportedParameter("speculation.tree: this model's verifiers judge no trees", "speculation.tree")
        if request.sampling.grammar:
            raise UnsupportedParameter("speculation.tree: no tree is drafted under a grammar", "speculation.tree")
    for param, name in named:
        if name not in info.drafter_names:
            addresses = {drafter.address for drafter in info.drafters}  # accepted as names, but not listed in errors
            names = ", ".join(known for known in info.drafter_names if known not in addresses)
            raise FieldInvalid(f"no drafter {name!r}; there are {names}", param)


def _mode(request: GenerationRequest, default: Mode) -> Mode:
    """Return the verification mode of a request.

    A seeded request gets coupled mode by default. Its tokens then depend on the seed and the target model alone, not
    on which drafts arrived in time.
    """
    if request.mode is None and request.seeded and default is not Mode.OFF:
        return Mode.COUPLED
    return request.mode or default


def _max_tokens(request: GenerationRequest, prompt: int, context: int, clamp: bool) -> int:
    """Return the longest output; all lengths are in tokens."""
    room = context - prompt
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens; the model's context is {context} tokens, prompt and output together",
            "prompt",
        )
    if not clamp and request.max_tokens is not None and request.max_tokens > room:
        raise ContextLengthExceeded(
            f"max_tokens is {request.max_tokens}, but beside a prompt of {prompt} tokens "
            f"the model's context of {context} has room for {room}",
            "max_tokens",
        )
    return min(room, request.max_tokens or request.cap_tokens or room)


def _scored_tokens(request: GenerationRequest, max_tokens: int, clamp: bool) -> int:
    """Return the longest output with the requested log probabilities, which a gateway keeps until the answer ends.

    Raises:
        FieldInvalid: the request asks for a longer one.
    """
    if request.logprobs is None:
        return max_tokens
    most = MAX_ANSWER_LOGPROBS // (request.number * (request.logprobs + 1))
    if request.max_tokens is not None and max_tokens > most and not clamp:
        raise FieldInvalid(
            f"logprobs: {request.number} outputs of {max_tokens} tokens with {request.logprobs} likely ones each are "
            f"over the limit of {MAX_ANSWER_LOGPROBS} log probabilities",
            "logprobs",
        )
    return min(max_tokens, most)


async def turn_key(request: GenerationRequest, sessions: SessionStore) -> tuple[str, SessionView | None]:
    """Return the idempotency key of a request's turn, and the view of its session; None for a new session.

    Without a key from the caller, the key is the request's digest and its position in the session. A client that
    retries a request, during the turn or after a timeout, therefore gets the turn that it began.

    Raises:
        SessionNotFound, SessionExpired: the session does not exist or has expired.
    """
    key = request.idempotency_key
    if not request.session:
        return key or new_id(), None
    view = await sessions.get(check_session_id(request.session), request.tenant, key)
    if key or (request.expect_turn is not None and request.retries is None):  # of two writers, one is refused
        return key or new_id(), view
    if view.turn and (request.retries or view.state is SessionState.GENERATING):
        key = f"{await digest_of(request)}:{view.turn - 1}"
        before = await sessions.get(request.session, request.tenant, key)
        if before.request_turn is not None:
            return key, before
    return f"{await digest_of(request)}:{view.turn}", view


async def digest_of(request: GenerationRequest) -> str:
    """Return the request's digest; that of a long prompt is computed on a thread."""
    if request_memory(request) <= _QUICK_BYTES:
        return request.digest
    return await asyncio.to_thread(lambda: request.digest)


def calls_of(last: TurnView, models: ServedModels) -> tuple[ToolCall, ...]:
    """Return the tool calls in the output of a whole turn; none if the turn had no tools."""
    header = header_from_bytes(last.params, last.prompt)
    reading = Reading.parse(header.reading)
    if not reading.tool_format:
        return ()
    tokens = [token for each in last.rounds for token in each.tokens]
    reader = MessageReader(reading, "")
    text = _read_text(models.of_turn(header.model).tokenizer.decode, tokens, reader.tags)
    return tuple(
        ToolCall.earlier(call.name, call.arguments, call.id)
        for call in map(as_function, joined_message((reader.feed(text), reader.end())).calls)
    )


def _read_text(decode: Decode, tokens: Sequence[int], tags: Container[str]) -> str:
    """Return the text of the tokens, with special tokens that are tags written by name."""
    text, run = "", list[int]()
    for token in tokens:
        name = decode.special.get(token, "")
        if name in tags:
            text, run = text + decode(run) + name, []
        else:
            run.append(token)
    return text + decode(run)

"""Generation request: one frozen value for HTTP and gRPC, with every check that needs no model."""

import hashlib
import math
import secrets
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from gateway.bounds import check_bad_words, check_stops, unique_ids
from gateway.callers.caller import ApiKey, PriorityClass, check_name, tenant_of
from gateway.tools.choice import ToolChoice
from gateway.tools.formats import ToolFormat
from gateway.tools.reading import Reading
from gateway.tools.values import Document, Message, Tool, ToolCall, check_messages
from gateway.tools.xml_calls import texts_of
from specdec.beams.exclusions import check_beside_beams
from specdec.beams.options import BeamOptions
from specdec.errors import FieldInvalid, FieldRequired, UnsupportedParameter
from specdec.planning.gamma_policy import AUTO, GammaPolicy
from specdec.rules.speculation import Mode, Speculation, TreeOptions
from specdec.sampling.params import MAX_SEED, SamplingParams, check_ids, check_logprobs
from specdec.wire.tokens import tokens_to_bytes

MAX_CHOICES = 256
"""Most choices of one request, summed over its prompts."""
MAX_OF_PROMPT = 16
"""Most choices of one prompt."""

_IDS = 2**31
"""Upper bound, exclusive, of token ids in any vocabulary."""
_SEED_BITS = 53
_IDS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text."""

    text: str
    special: bool = True
    """Whether the tokens that a text begins with, such as BOS, are added."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, used without change.

    Raises:
        TokenOutOfRange: a token id is negative or has more than 31 bits.
    """

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        check_ids(self.tokens, "prompt", _IDS)  # here, since each choice of a request checks its prompt again


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, which the model's chat template turns into text."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    """Tools that the model may call."""
    called: tuple[ToolCall, ...] = ()
    """Tool calls at the end of the session's previous turn."""
    opens_answer: bool = True
    """Whether the template opens the assistant's next message."""
    continues_last: bool = False
    """Whether the model continues the last message."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Extra variables of the chat template, by name."""
    documents: tuple[Document, ...] = ()
    """Documents for templates that render them."""
    special: bool = False
    """Whether the tokens that a text begins with are added before the template's text."""

    def opened(self, add_generation_prompt: bool | None, continue_final_message: bool) -> "ChatPrompt":
        """Return a copy that opens or continues the assistant's message, as the caller's two fields ask.

        Raises:
            FieldInvalid: both fields are true, or there is no assistant message to continue.
        """
        if not continue_final_message:
            return replace(self, opens_answer=add_generation_prompt is not False)
        name = "continue_final_message"
        if add_generation_prompt:
            raise FieldInvalid(f"{name} and add_generation_prompt exclude each other", name)
        if not self.messages or self.messages[-1].role != "assistant" or not self.messages[-1].content:
            raise FieldInvalid(f"{name} needs a last message of the assistant with a content", name)
        return replace(self, opens_answer=False, continues_last=True)


Prompt = TextPrompt | TokenPrompt | ChatPrompt
_ANY_PROMPT = TextPrompt("any")
"""Stands for the prompts of a request where they are left out."""


def new_id() -> str:
    """A random id."""
    return uuid.uuid4().hex


def random_seed() -> int:
    """Return a random seed that a JSON number represents exactly."""
    return secrets.randbits(_SEED_BITS)


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Return sampling parameters for these options; a missing seed or -1 becomes random. Raises FieldInvalid.

    A `top_p` of 0 means greedy decoding. Other negative seeds map to seeds in the valid range.
    """
    options = dict(given)
    if options.get("top_p") == 0:
        options |= {"top_p": 1.0, "temperature": 0.0}
    seed = options.get("seed", -1)
    if seed < -MAX_SEED - 1:
        raise FieldInvalid(f"seed must be in [{-MAX_SEED - 1}, {MAX_SEED}], got {seed}", "seed")
    options["seed"] = random_seed() if seed == -1 else seed if seed >= 0 else seed + MAX_SEED + 1
    return SamplingParams(**options)


def named_options(given: Mapping[str, Any], max_tokens: int | None) -> frozenset[str]:
    """Return the names of the options that the caller set, which override the model's defaults.

    A `top_p` of 0 means greedy decoding, so it also sets the temperature.
    """
    implied = {"temperature": given.get("top_p") == 0, "max_tokens": max_tokens is not None}
    return frozenset((*given, *(name for name, holds in implied.items() if holds)))


def is_seeded(seed: int | None) -> bool:
    """Whether the seed asks for reproducible tokens; -1 and None do not."""
    return seed is not None and seed != -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Request for text. Construction validates everything that needs no model.

    Raises:
        FieldRequired: no prompt.
        FieldInvalid: a field is out of range.
        TokenOutOfRange: a token id is negative or has more than 31 bits.
    """

    prompt: Prompt
    """First prompt of the request."""
    sampling: SamplingParams
    more_prompts: tuple[Prompt, ...] = ()
    """Further prompts; each has its own choices."""
    of_prompts: int = 1
    """Number of prompts of the original request, if this is one of its choices."""
    truncate_prompt: int | None = None
    """Number of the prompt's last tokens to use; -1 uses as many as fit, None uses all."""
    named: frozenset[str] = frozenset()
    """Names of the fields of `sampling`, and `max_tokens`, that the caller gave; a model's defaults fill the others."""
    grammar_param: str = ""
    """The field that the grammar of `sampling` came from."""
    reading: Reading = field(default_factory=Reading)
    """Format in which to parse the output for thinking and tool calls."""
    shows_thinking: bool = True
    """Whether the answer has the model's thinking."""
    thinking_budget: int | None = None
    """Most tokens of thinking before the answer; None sets no limit."""
    model: str = ""
    """Model name; empty selects the default model."""
    max_tokens: int | None = None
    """Longest output, in tokens; None takes the room left in the context."""
    cap_tokens: int | None = None
    """Like `max_tokens`, but lowered to the room left in the context instead of refused."""
    stop: tuple[str, ...] = ()
    """Strings that end the output."""
    bad_words: tuple[str, ...] = ()
    """Texts whose token sequences never appear in the output."""
    shows_stop: bool = False
    """Whether the text ends with the stop string that ended it."""
    shows_special: bool = False
    """Whether special tokens are shown by their names."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, beside those of the model."""
    ignore_eos: bool = False
    """Whether the model's own end tokens do not end the output."""
    mode: Mode | None = None
    """How drafts are verified; None takes the server's mode, or coupled mode for a seeded request."""
    seeded: bool = False
    """Whether the caller chose the seed to get reproducible tokens."""
    gamma: int | None = None
    """Draft length; None leaves it to the policy."""
    policy: GammaPolicy = AUTO
    lenience: float | None = None
    """ℓ in (0, 1]; at 1 the output is exact, and None takes the server's."""
    tree: TreeOptions | None = None
    """Tree drafting options; None drafts chains, or the server's default trees if the request is greedy."""
    drafter: str = ""
    """Drafter name; empty leaves the choice to the server."""
    prediction: str = ""
    """Text that the output is expected to repeat in part; used as a source of drafts."""
    detail: bool = False
    """Whether every round includes a report."""
    logprobs: int | None = None
    """Number of likely tokens reported per output token; None reports no log probabilities."""
    prompt_logprobs: int | None = None
    """Number of likely tokens reported per prompt token; None reports none."""
    n: int = 1
    """Number of outputs per prompt; output i uses the seed `sampling.seed` + i."""
    request_id: str = field(default_factory=new_id)
    idempotency_key: str = ""
    """Requests with the same key share one generation; a request without a key starts a new one."""
    retries: int | None = None
    """Number of automatic retries of this request by the client; None if the client does not report it."""
    user: str = ""
    """User on whose behalf the caller asks. Users cannot see each other's sessions and generations."""
    key: ApiKey | None = None
    """API key of the request; None if the gateway requires no keys."""
    session: str = ""
    """Id of the session to continue; empty starts a new session."""
    expect_turn: int | None = None
    """Number of earlier turns that the session must have; None accepts any number."""
    priority: PriorityClass = PriorityClass.DEFAULT
    cache_salt: str = ""
    """Salt of the prefix cache: a user's requests share cached prefixes only if their salts are equal."""
    answer_format: str = ""
    """Answer format in the notation of the API that took the request; stored so that the generation can be resumed."""
    beams: BeamOptions | None = None
    """Beam search whose best beam is the output; None samples."""
    resumable: bool = True
    """Whether the caller can resume the stream: it has a key, or receives the generation's id before the end."""

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """All prompts."""
        return (self.prompt, *self.more_prompts)

    @property
    def number(self) -> int:
        """Number of generations of the request."""
        return self.n * (len(self.more_prompts) + self.of_prompts)

    @property
    def tenant(self) -> str:
        """Tenant whose sessions the request may use."""
        return tenant_of(self.user, self.key)

    @property
    def digest(self) -> str:
        """Hash of the request's content, equal for equal requests. A randomly drawn seed is left out."""
        sampling = self.sampling if self.seeded else replace(self.sampling, seed=0)
        asked = replace(
            self,
            prompt=_ANY_PROMPT,
            more_prompts=(),
            sampling=sampling,
            lenience=1.0 if self.lenience is None else self.lenience,
            request_id="",
            idempotency_key="",
            answer_format="",
            resumable=True,
            retries=None,
            key=None,  # a retry with a newer key of the same tenant has the same digest
        )
        digest = hashlib.sha256(repr(asked).encode())
        for part in chain.from_iterable(map(_parts, self.prompts)):
            digest.update(part)
        return digest.hexdigest()[:32]

    def __post_init__(self) -> None:
        for prompt in self.prompts:
            check_prompt(prompt)
        check_name(self.user, "user")
        check_name(self.idempotency_key, "request_id")
        check_name(self.cache_salt, "cache_salt")
        check_name(self.drafter, "speculation.drafter")
        check_stops(self.stop)
        check_bad_words(self.bad_words)
        check_ids(unique_ids(self.stop_token_ids, "stop_token_ids"), "stop_token_ids", _IDS)
        for name, ids in self.sampling.named_ids.items():
            check_ids(unique_ids(ids, name), name, _IDS)
        check_logprobs(self.logprobs)
        check_logprobs(self.prompt_logprobs, "prompt_logprobs")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise FieldInvalid(f"max_tokens must be at least 1, got {self.max_tokens}", "max_tokens")
        limit = self.max_tokens if self.max_tokens is not None else self.cap_tokens
        if self.sampling.min_tokens > (math.inf if limit is None else limit):
            raise FieldInvalid(
                f"min_tokens must not be over max_tokens, got {self.sampling.min_tokens} and {limit}", "min_tokens"
            )
        lenience = 1.0 if self.lenience is None else self.lenience
        Speculation(gamma=self.gamma, lenience=lenience, drafter=self.drafter, policy=self.policy, tree=self.tree)
        if self.ignore_eos and self.sampling.grammar and self.grammar_param:
            raise FieldInvalid(f"ignore_eos: nothing may follow the end of {self.grammar_param}", "ignore_eos")
        if not 1 <= self.n <= MAX_OF_PROMPT or self.number > MAX_CHOICES:
            prompts = len(self.prompts)
            most = min(MAX_CHOICES // prompts, MAX_OF_PROMPT)
            raise FieldInvalid(f"n must be in 1..{most} for requests with {prompts} prompts, got {self.n}", "n")
        self._check_beams()
        _check_truncation(self.truncate_prompt)
        if self.session and self.number > 1:
            raise FieldInvalid("a session takes one choice a turn", "n")

    def _check_beams(self) -> None:
        """Raise UnsupportedParameter for an option that cannot be combined with a beam search, if there is one."""
        if self.beams is None:
            return
        others = {
            "n": self.n > 1,
            "stop": self.stop,
            "bad_words": self.bad_words,
            self.grammar_param or "tools": self.sampling.grammar,
            "thinking_token_budget": self.thinking_budget is not None,
            "logprobs": self.logprobs is not None,
            "prompt_logprobs": self.prompt_logprobs is not None,
            "prediction": self.prediction,
            "speculation.tree": self.tree,
            "speculation.lenience": self.lenience not in (None, 1.0),
            "speculation.gamma": self.policy != AUTO,
            "speculation.detail": self.detail,
        }
        check_beside_beams(self.sampling, "temperature" in self.named, others)

    def check_thinking(self, tool_format: ToolFormat, param: str) -> None:
        """Raise UnsupportedParameter if a thinking budget, the field `param`, is set but cannot be enforced."""
        if self.thinking_budget is not None and not tool_format.thinking:
            raise UnsupportedParameter(f"{param}: how this model thinks is not known", param)

    def with_tools(self, choice: ToolChoice, tool_format: ToolFormat) -> "GenerationRequest":
        """Return a copy with the offered tools, for a model that writes calls in `tool_format`.

        Raises:
            FieldInvalid, FieldRequired: the tool choice and the tools are inconsistent.
            UnsupportedParameter: tools are used without a chat, or cannot be forced.
        """
        tools = choice.offered()
        if not isinstance(self.prompt, ChatPrompt) and not tools:
            return self
        if not tools:
            return replace(self, reading=Reading(thinking=tool_format.thinking, shown=self.shows_thinking))
        if not isinstance(self.prompt, ChatPrompt):
            raise UnsupportedParameter("tools belong to a chat", "tools")
        sampling = replace(self.sampling, grammar=choice.grammar(tool_format, self.sampling.grammar))
        prompt = replace(self.prompt, tools=tools)
        reading = Reading(
            tool_format.name,
            texts_of(tools),
            tool_format.thinking,
            parallel=choice.parallel,
            custom=tuple(tool.name for tool in tools if tool.custom),
            shown=self.shows_thinking,
        )
        param = self.grammar_param or "tools"
        return replace(self, prompt=prompt, sampling=sampling, grammar_param=param, reading=reading)

    def after_calls(self, called: tuple[ToolCall, ...]) -> "GenerationRequest":
        """Return a copy for a turn that follows these tool calls."""
        return (
            replace(self, prompt=replace(self.prompt, called=called)) if isinstance(self.prompt, ChatPrompt) else self
        )

    def choices(self) -> "tuple[GenerationRequest, ...]":
        """Return one request per generation, each with its own prompt and seed, grouped by prompt."""
        if self.n == 1 and not self.more_prompts:
            return (self,)
        count, seeds = len(self.prompts), [(self.sampling.seed + index) % (MAX_SEED + 1) for index in range(self.n)]
        return tuple(
            replace(self, prompt=prompt, more_prompts=(), of_prompts=count, sampling=replace(self.sampling, seed=seed))
            for prompt in self.prompts
            for seed in seeds
        )


def _parts(prompt: Prompt) -> Iterator[bytes]:
    """Yield the parts of a prompt's digest; one call for all ids would hold the interpreter lock."""
    if not isinstance(prompt, TokenPrompt):
        yield repr(prompt).encode()
        return
    yield b"%d token ids" % len(prompt.tokens)
    for start in range(0, len(prompt.tokens), _IDS_AT_ONCE):
        yield tokens_to_bytes(prompt.tokens[start : start + _IDS_AT_ONCE])


def _check_truncation(truncate: int | None) -> None:
    if truncate is not None and truncate != -1 and truncate < 1:
        raise FieldInvalid(f"truncate_prompt_tokens must be -1 or at least 1, got {truncate}", "truncate_prompt_tokens")


def check_prompt(prompt: Prompt) -> None:
    """Raise FieldRequired or FieldInvalid unless the prompt is well formed and not empty."""
    match prompt:
        case TextPrompt(text):
            if not text:
                raise FieldRequired("prompt must not be empty", "prompt")
        case TokenPrompt(tokens):
            if not tokens:
                raise FieldRequired("prompt must not be empty", "prompt")
        case ChatPrompt(messages):
            check_messages(messages)

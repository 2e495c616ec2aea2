"""Hop 1, gateway to verifier: what a generation asks for, what each round answers, what the verifier says of itself.

Each value stands here once, with the way to protobuf and back beside it; both services work with these values.
"""

from dataclasses import dataclass
from enum import StrEnum

from protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Origin, Speculation, TreeOptions
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.codec import Codec, Pair, each, optional
from specdec.wire.logprobs import logprobs_from_pb, logprobs_to_pb
from specdec.wire.params import FINISH, GAMMA_POLICY, MODE, ORIGIN, SAMPLING, TREE
from specdec.wire.tokens import TOKENS

HEARTBEAT = 5.0
"""Seconds without a round after which a generation's stream says that it goes on."""
SILENCE = 4 * HEARTBEAT
"""Seconds without a round or a heartbeat after which a stream is lost, however well its connection answers pings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """One generation, or the rest of one, with every choice made."""

    session_id: str = ""
    epoch: int = 0
    """Fencing number of the session's owner."""
    tokens: tuple[int, ...]
    """The prompt, then the output that is committed already."""
    prompt_len: int
    sampling: SamplingParams
    max_tokens: int
    """Output length, committed tokens included, at which the generation ends."""
    stop_token_ids: tuple[int, ...]
    """Ids that end the generation, the model's own among them unless they are to be ignored."""
    speculation: Speculation
    logprobs: int | None = None
    """How many likely tokens are reported beside each committed one; None reports no log probabilities."""
    prompt_logprobs: int | None = None
    """How many likely tokens are reported beside each token of the prompt; None reports nothing of it."""
    priority: int = 0
    """Place in the queue: less goes first; it counts as time waited."""
    cache_salt: str = ""
    """Only generations of one salt share computed prefixes."""


class Fallback(StrEnum):
    """Why a round of a request that allows drafts had none."""

    NONE = ""
    UNAVAILABLE = "drafter_unavailable"
    LATE = "late"
    """The draft did not come in the time for which waiting pays."""
    TOKENIZER = "tokenizer_mismatch"
    OVERLOADED = "overloaded"
    NO_MATCH = "no_match"
    """The drafter is there, and its source has nothing that continues the text."""
    NOT_WORTH_IT = "not_worth_it"
    """Drafts would have cost more time than they save."""
    FIRST_ROUND = "first_round"
    """The drafter still reads what the target has read: nothing waits for that."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of one round went, in seconds."""

    draft: float = 0.0
    """Waiting for the draft."""
    queue: float = 0.0
    """Waiting for a place in a batch."""
    verify: float = 0.0
    """Target pass and verdict of the whole batch."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """Tokens a second with drafts over those without; 0 while unknown."""

    predicted: float = 0.0
    measured: float = 0.0


class GammaReason(StrEnum):
    """Why a round asked for so many drafts."""

    FIXED = "fixed"
    """The request, or else the verifier's settings, fix it."""
    OPTIMAL = "optimal"
    """The request asks for the length that is best for it alone."""
    EGAG = "egag"
    """The drafter ends each draft by the entropy of its distributions."""
    GOODPUT = "goodput"
    """With it the batch is expected to commit most tokens a second."""
    TRIAL = "trial"
    """A trial of the way that is not in use, drafting or plain decoding."""
    ROOM = "room"
    """The generation has no room for more."""
    SOURCE = "source"
    """What drafted is in the verifier's process, and chose itself."""


@dataclass(frozen=True, slots=True)
class RoundDetail:
    """What the verifier knows of a round beside its verdict; it is not kept in the session store."""

    gamma: int = 0
    """Drafts that the round asked for."""
    reason: str = ""
    """A `GammaReason`, or one that only a newer verifier knows."""
    alpha: float = 0.0
    """The chance, as estimated before the round, that its next draft is accepted."""
    survival: float = 0.0
    """Where γ is chosen for the whole batch: drafts that survive less likely than this are not worth their time."""
    network: float = 0.0
    """Of the seconds that the round waited for its draft, those of the way to the drafter and back."""
    judged: tuple[JudgedToken, ...] = ()
    """The numbers of each draft token."""


GRAMMAR = "grammar"
"""What drafted the tokens that a grammar forces."""


@dataclass(frozen=True, slots=True)
class DraftPart:
    """Consecutive tokens of a draft, of one source."""

    drafter: str
    """Kind of what made them."""
    drafted: int
    accepted: int
    """Of these, tokens of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One draft and its verdict: what a round commits.

    In a gateway, a round without a draft may stand for several that came together, each of which committed one token.
    """

    base_len: int
    """Committed length before this round."""
    tokens: tuple[int, ...] = ()
    """At least one, except in a round that does nothing but end a generation."""
    origins: tuple[Origin, ...] = ()
    """Where each of `tokens` came from."""
    draft: tuple[int, ...] = ()
    """Of a tree, the accepted path first."""
    accepted: int = 0
    """Drafts among `tokens`."""
    drafter: str = ""
    """Kind of what made the draft, or its beginning; empty without one."""
    forced: int = 0
    """How many of the draft's last tokens a grammar forced."""
    finish: FinishReason | None = None
    """Set on the last round."""
    fallback: str = ""
    """A `Fallback`, or a reason that only a newer verifier knows."""
    timing: Timing = Timing()
    speedup: Speedup = Speedup()
    """What drafts bring the batch, where the verifier chooses γ; it is not kept in the session store."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of `tokens`; empty when nobody asked."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt's tokens but the first, on the first round; empty when nobody asked."""
    cached_tokens: int = 0
    """Tokens of the prompt that were not computed anew; set on the first round."""
    detail: RoundDetail | None = None
    """Set when the request asks for it."""

    @property
    def parts(self) -> tuple[DraftPart, ...]:
        """The draft by its sources: what a drafter drafted, then what a grammar forced behind that."""
        own = len(self.draft) - self.forced
        accepted = min(self.accepted, own)
        parts = (DraftPart(self.drafter, own, accepted), DraftPart(GRAMMAR, self.forced, self.accepted - accepted))
        return tuple(part for part in parts if part.drafted and part.drafter)


@dataclass(frozen=True, slots=True)
class DrafterState:
    """One drafter as its verifier sees it."""

    address: str
    state: str
    """`ready`, `connecting`, or `refused: ` or `unauthenticated: ` and why."""
    model: str
    """Empty until known."""
    kind: str = ""
    """What drafts there, as in `model`; empty until known."""
    overlap: float = 0.0
    """Share of the smaller vocabulary that target and drafter have in common; 0 until known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierInfo:
    """The target model and its limits."""

    model: str
    tokenizer_hash: str
    vocab_size: int
    """Ids below this are valid."""
    context_length: int
    """Longest sequence, prompt and output together."""
    end_token_ids: tuple[int, ...]
    gamma_max: int
    """Longest draft."""
    system_fingerprint: str
    """Of weights, dtype and code: a generation may move between verifiers that share it."""
    drafters: tuple[DrafterState, ...] = ()
    prefill_rate: float = 0.0
    """Prompt tokens computed in a second, as measured; 0 while unknown."""
    drafter_names: tuple[str, ...] = ()
    """What a request may name as its drafter."""
    grammars: bool = False
    """Whether generations may have a grammar; one that cannot would ignore it."""
    trees: bool = False
    """Whether drafts may be trees."""
    heartbeats: bool = False
    """Whether the streams of generations have heartbeats."""
    passes: bool = False
    """Whether one stream carries all generations of a gateway, pass by pass."""
    lenience: float = 1.0
    """Lenience of requests in mode rejection that do not choose."""
    tree: TreeOptions | None = None
    """Trees of greedy requests that do not choose; None is chains."""
    prompt_logprobs: bool = False
    """Whether log probabilities of prompts are reported; one that cannot would ignore the wish."""
    bad_words: bool = False
    """Whether bad words are kept out of the output."""


_CALL = Codec(
    GenerationCall,
    pb.GenerateRequest,
    tokens=TOKENS,
    sampling=SAMPLING,
    speculation=Codec(Speculation, pb.Speculation, mode=MODE, prediction=TOKENS, policy=GAMMA_POLICY, tree=TREE),
)
SPEEDUP = Codec(Speedup, pb.Speedup)
DETAIL = optional(Codec(RoundDetail, pb.RoundDetail, judged=each(Codec(JudgedToken, pb.JudgedToken))))
"""None is not sent."""
_ROUND = Codec(
    Round,
    pb.GenerateResponse,
    {"draft": "draft_tokens", "finish": "finish_reason", "fallback": "fallback_reason"},
    tokens=TOKENS,
    origins=each(ORIGIN),
    draft=TOKENS,
    finish=FINISH,
    timing=Codec(Timing, pb.RoundTiming),
    speedup=SPEEDUP,
    logprobs=Pair(logprobs_to_pb, logprobs_from_pb),
    prompt_logprobs=Pair(logprobs_to_pb, logprobs_from_pb),
    detail=DETAIL,
)
_INFO = Codec(VerifierInfo, pb.GetVerifierInfoResponse, drafters=each(Codec(DrafterState, pb.DrafterState)), tree=TREE)

call_to_pb, call_from_pb = _CALL.to_pb, _CALL.from_pb
round_to_pb, round_from_pb = _ROUND.to_pb, _ROUND.from_pb
info_to_pb, info_from_pb = _INFO.to_pb, _INFO.from_pb

"""Hop 1, gateway to verifier: generation requests, round results and verifier information.

Each value is defined here once, with its protobuf translation. Both services use these values.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from specdec.beams.options import BeamOptions, BeamReport
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.judged import JudgedToken
from specdec.rules.speculation import Origin, Speculation, TreeOptions
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.beams import BEAM_OPTIONS, BEAM_REPORT
from specdec.wire.codec import Codec, Pair, each, optional
from specdec.wire.logprobs import logprobs_from_pb, logprobs_to_pb
from specdec.wire.params import FINISH, GAMMA_POLICY, MODE, ORIGIN, SAMPLING, TREE
from specdec.wire.tokens import TOKENS

HEARTBEAT = 5.0
"""Idle time, in seconds, after which a generation's stream sends a heartbeat."""
SILENCE = 4 * HEARTBEAT
"""Silence, in seconds, after which a stream counts as lost, even if its connection answers pings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """One generation, or the rest of one, with all options resolved."""

    session_id: str = ""
    epoch: int = 0
    """Fencing number of the session's owner."""
    tokens: tuple[int, ...]
    """Prompt and committed output."""
    prompt_len: int
    sampling: SamplingParams
    max_tokens: int
    """Maximum length of the output, committed tokens included."""
    stop_token_ids: tuple[int, ...]
    """Ids that end the generation, including the model's own unless the request ignores them."""
    speculation: Speculation
    logprobs: int | None = None
    """Number of likely tokens to report for each committed token; None reports no log probabilities."""
    prompt_logprobs: int | None = None
    """Number of likely tokens to report for each prompt token; None reports none."""
    priority: int = 0
    """Priority in the queue, lower first. Each level counts as time waited."""
    cache_salt: str = ""
    """Cache salt: only generations with the same salt share computed prefixes."""
    beams: BeamOptions | None = None
    """Search whose best beam is the output, in one round; None samples."""
    adapter: str = ""
    """Name of the target's adapter; empty is the model as it is."""
    client: str = ""
    """Pseudonym of the caller's client, a key's tenant or an address; passes are shared fairly between clients."""
    user: str = ""
    """Pseudonym of the client's user; a client's part of a pass is shared fairly between its users."""


class Fallback(StrEnum):
    """Reason that a round had no draft although the request allows drafts."""

    NONE = ""
    UNAVAILABLE = "drafter_unavailable"
    LATE = "late"
    """The draft did not arrive within the time that waiting pays off."""
    TOKENIZER = "tokenizer_mismatch"
    OVERLOADED = "overloaded"
    NO_MATCH = "no_match"
    """The drafter is available, but its source has no continuation of the text."""
    NOT_WORTH_IT = "not_worth_it"
    """Drafts would cost more time than they save."""
    FIRST_ROUND = "first_round"
    """The drafter is still reading the tokens that the target has read, and the round does not wait for it."""


class Timing(NamedTuple):
    """Breakdown of the time of one round, in seconds."""

    draft: float = 0.0
    """Waiting for the draft."""
    queue: float = 0.0
    """Waiting for a slot in a batch."""
    verify: float = 0.0
    """Target pass and verdict of the whole batch."""


class Speedup(NamedTuple):
    """Speed-up: tokens per second with drafts divided by tokens per second without; 0 while unknown."""

    predicted: float = 0.0
    measured: float = 0.0


class GammaReason(StrEnum):
    """Reason for the draft length that a round requested."""

    FIXED = "fixed"
    """Fixed by the request, or else by the verifier's settings."""
    OPTIMAL = "optimal"
    """The request asks for the length that is optimal for it alone."""
    EGAG = "egag"
    """The drafter ends each draft by the entropy of its distributions."""
    GOODPUT = "goodput"
    """Length with the highest expected number of committed tokens per second for the batch."""
    TRIAL = "trial"
    """Trial of the alternative that is not in use: drafting or plain decoding."""
    ROOM = "room"
    """The generation has no room for a longer draft."""
    SOURCE = "source"
    """Chosen by a draft source in the verifier's process."""


@dataclass(frozen=True, slots=True)
class RoundDetail:
    """Details of a round beyond its verdict. They are not kept in the session store."""

    gamma: int = 0
    """Number of drafts that the round requested."""
    reason: str = ""
    """A `GammaReason`, or a reason that only a newer verifier knows."""
    alpha: float = 0.0
    """Estimated probability, before the round, that its next draft is accepted."""
    survival: float = 0.0
    """Minimum survival probability of a draft worth its time, when γ is chosen for the whole batch."""
    network: float = 0.0
    """Part of the wait for the draft spent on the network to the drafter and back, in seconds."""
    judged: tuple[JudgedToken, ...] = ()
    """Verification data of each draft token."""


GRAMMAR = "grammar"
"""Drafter kind of the tokens that a grammar forces."""


@dataclass(frozen=True, slots=True)
class DraftPart:
    """Consecutive draft tokens from one source."""

    drafter: str
    """Kind of the drafter or source."""
    drafted: int
    accepted: int
    """Number of these tokens in the output."""


class Round(NamedTuple):
    """One verification round: a draft, its verdict, and the tokens that it commits.

    In a gateway, a round without a draft may combine several rounds that arrived together, each with one token.
    """

    base_len: int
    """Committed length before this round, in tokens."""
    tokens: tuple[int, ...] = ()
    """Committed tokens: at least one, except in a round that only ends a generation."""
    origins: tuple[Origin, ...] = ()
    """Origin of each of `tokens`."""
    draft: tuple[int, ...] = ()
    """Draft tokens. A tree lists the accepted path first."""
    accepted: int = 0
    """Number of drafts among `tokens`."""
    drafter: str = ""
    """Kind of the drafter of the draft, or of its beginning; empty without a draft."""
    forced: int = 0
    """Number of last draft tokens that a grammar forced."""
    finish: FinishReason | None = None
    """Set on the last round."""
    fallback: str = ""
    """A `Fallback`, or a reason that only a newer verifier knows; empty if there was a draft."""
    timing: Timing = Timing()
    speedup: Speedup = Speedup()
    """Speed-up of the batch by drafts, if the verifier chooses γ. It is not kept in the session store."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of `tokens`; empty unless requested."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of the prompt's tokens after the first, on the first round; empty unless requested."""
    cached_tokens: int = 0
    """Number of prompt tokens served from the prefix cache; set on the first round."""
    detail: RoundDetail | None = None
    """Set if the request asks for details."""
    beams: BeamReport | None = None
    """Set on the round of a beam search. It is not kept in the session store."""

    @property
    def parts(self) -> tuple[DraftPart, ...]:
        """Parts of the draft by source: the drafter's tokens, then the tokens that a grammar forced."""
        own = len(self.draft) - self.forced
        accepted = min(self.accepted, own)
        parts = (DraftPart(self.drafter, own, accepted), DraftPart(GRAMMAR, self.forced, self.accepted - accepted))
        return tuple(part for part in parts if part.drafted and part.drafter)


@dataclass(frozen=True, slots=True)
class DrafterState:
    """State of one drafter, as its verifier sees it."""

    address: str
    state: str
    """`ready`, `connecting`, or `refused: ` or `unauthenticated: ` followed by the reason."""
    model: str
    """Model name; empty until known."""
    kind: str = ""
    """Kind of the drafter, such as `model`; empty until known."""
    overlap: float = 0.0
    """Share of the smaller vocabulary that target and drafter have in common; 0 until known."""


class Adapter(NamedTuple):
    """Adapter of the target that a request may choose."""

    name: str
    system_fingerprint: str
    """Fingerprint of the model with this adapter and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierInfo:
    """The target model and its limits."""

    model: str
    tokenizer_hash: str
    vocab_size: int
    """Number of token ids; valid ids are below it."""
    context_length: int
    """Maximum length of a sequence, prompt and output together, in tokens."""
    end_token_ids: tuple[int, ...]
    gamma_max: int
    """Maximum draft length, in tokens."""
    system_fingerprint: str
    """Fingerprint of weights, dtype and code. A generation may move between verifiers with equal fingerprints."""
    drafters: tuple[DrafterState, ...] = ()
    prefill_rate: float = 0.0
    """Measured prefill rate, in prompt tokens per second; 0 while unknown."""
    drafter_names: tuple[str, ...] = ()
    """Names that a request may use to choose its drafter."""
    grammars: bool = False
    """Whether generations may have a grammar. A verifier without support would ignore it."""
    trees: bool = False
    """Whether drafts may be trees."""
    heartbeats: bool = False
    """Whether generation streams send heartbeats."""
    passes: bool = False
    """Whether one stream carries all generations of a gateway, pass by pass."""
    lenience: float = 1.0
    """Default lenience of requests in mode rejection."""
    tree: TreeOptions | None = None
    """Default trees of greedy requests; None drafts chains."""
    prompt_logprobs: bool = False
    """Whether log probabilities of prompts are reported. A verifier without support would ignore the request."""
    bad_words: bool = False
    """Whether bad words are excluded from the output."""
    beams: bool = False
    """Whether beams are searched. A verifier without support would ignore the request."""
    adapters: tuple[Adapter, ...] = ()
    """Adapters that requests may choose. A verifier without support would ignore the choice."""
    kv_fingerprint: str = ""
    """Fingerprint of the KV blocks that the verifier exchanges; empty if it is `system_fingerprint`."""
    kv_block_tokens: int = 0
    """Exchanged KV blocks begin and end at multiples of this number of tokens; 0 if any block can be exchanged."""
    turn_end_token_ids: tuple[int, ...] = ()
    """End ids that only the chat template names, as the end of a turn."""

    @property
    def adapter(self) -> str:
        """Name of the adapter that the fingerprint belongs to; empty if it is the model's own."""
        return next((each.name for each in self.adapters if each.system_fingerprint == self.system_fingerprint), "")

    def under(self, fingerprint: str) -> "VerifierInfo | None":
        """Return the facts under a fingerprint, which is the model's own, empty for that, or that of an adapter."""
        if fingerprint in ("", self.system_fingerprint):
            return self
        served = any(each.system_fingerprint == fingerprint for each in self.adapters)
        return replace(self, system_fingerprint=fingerprint) if served else None


_CALL = Codec(
    GenerationCall,
    pb.GenerateRequest,
    tokens=TOKENS,
    sampling=SAMPLING,
    beams=BEAM_OPTIONS,
    speculation=Codec(Speculation, pb.Speculation, mode=MODE, prediction=TOKENS, policy=GAMMA_POLICY, tree=TREE),
)
SPEEDUP = Codec(Speedup, pb.Speedup)
DETAIL = optional(Codec(RoundDetail, pb.RoundDetail, judged=each(Codec(JudgedToken, pb.JudgedToken))))
"""None is sent as an unset field."""
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
    beams=BEAM_REPORT,
)
_INFO = Codec(
    VerifierInfo,
    pb.GetVerifierInfoResponse,
    drafters=each(Codec(DrafterState, pb.DrafterState)),
    tree=TREE,
    adapters=each(Codec(Adapter, pb.Adapter)),
)

call_to_pb, call_from_pb = _CALL.to_pb, _CALL.from_pb
round_to_pb, round_from_pb = _ROUND.to_pb, _ROUND.from_pb
info_to_pb, info_from_pb = _INFO.to_pb, _INFO.from_pb

"""The sampling and speculation parameters of a request: frozen values, validated where they are made."""

import math
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from specdec.errors import FieldInvalid, TokenOutOfRange
from specdec.rules.gamma_policy import AUTO, GammaPolicy, PolicyKind
from specdec.rules.grammar import Grammar
from specdec.rules.tree_options import TreeOptions

MAX_SEED = 2**63 - 1
"""Largest seed, so that it fits a signed 64-bit integer."""
MAX_LOGPROBS = 20
"""Largest number of likely tokens that are reported with each committed one."""


class Mode(StrEnum):
    """How drafts are verified."""

    OFF = "off"
    REJECTION = "rejection"
    BLOCK = "block"
    COUPLED = "coupled"


class Origin(StrEnum):
    """Where a committed token came from."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"


class FinishReason(StrEnum):
    """Why a generation ended, named as in OpenAI's API."""

    STOP = "stop"
    """It reached an end token or a stop string."""
    LENGTH = "length"
    """It reached the token limit or the end of the context."""


def _within(name: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    """Raise FieldInvalid unless low <= value <= high (low < value when `open_low`); NaN fails."""
    if not (low < value if open_low else low <= value) or not value <= high:
        bracket = "(" if open_low else "["
        raise FieldInvalid(f"{name} must be in {bracket}{low:g}, {high:g}], got {value}", name)


@dataclass(frozen=True)
class SamplingParams:
    """How a distribution is made from logits; target, drafter and plain decoding use the same value.

    Raises:
        FieldInvalid: a field is out of range or not a number.
    """

    temperature: float = 1.0
    """Divides the logits; 0 is greedy decoding."""
    top_p: float = 1.0
    """Probability mass of the nucleus; 1 is off."""
    top_k: int = 0
    """How many of the most likely tokens are kept; 0 is off."""
    min_p: float = 0.0
    """Least probability relative to the most likely token; 0 is off."""
    seed: int = 0
    """Keys every random number of the generation."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of each token for each time it occurs in the output."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt and output; 1 is off."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """Bias of token ids, added to their logits before everything else."""
    min_tokens: int = 0
    """`end_token_ids` are masked until the output has this many tokens."""
    end_token_ids: tuple[int, ...] = ()
    """The ids that `min_tokens` masks."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only ids that may be drawn; empty allows all."""
    banned_token_ids: tuple[int, ...] = ()
    """Ids that may not be drawn."""
    grammar: Grammar | None = None
    """What the output must be a sentence of; None allows any text."""

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, 2.0)
        _within("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _within("top_k", self.top_k, 0, 2**31 - 1)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("seed", self.seed, 0, MAX_SEED)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("repetition_penalty", self.repetition_penalty, 0.0, 2.0, open_low=True)
        _within("min_tokens", self.min_tokens, 0, 2**31 - 1)
        for token, bias in self.logit_bias.items():
            if token < 0 or not math.isfinite(bias) or not -100.0 <= bias <= 100.0:
                raise FieldInvalid(f"logit_bias[{token}] must be in [-100, 100], got {bias}", "logit_bias")

    @property
    def needs_history(self) -> bool:
        """Whether the distribution depends on earlier tokens, as with penalties and `min_tokens`."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
            or self.min_tokens > 0
        )

    @property
    def ranking(self) -> "SamplingParams":
        """The parameters whose distribution ranks tokens: at temperature 0 their own has a single one."""
        if self.temperature > 0.0:
            return self
        return replace(self, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)

    @property
    def named_ids(self) -> Mapping[str, Collection[int]]:
        """The ids in every field that names token ids; they may lie outside the vocabulary."""
        return {
            "logit_bias": self.logit_bias.keys(),
            "end_token_ids": self.end_token_ids,
            "allowed_token_ids": self.allowed_token_ids,
            "banned_token_ids": self.banned_token_ids,
        }

    @cached_property
    def id_arrays(self) -> "Mapping[str, array[int]]":
        """`named_ids` as arrays of int64, made once: long lists would cost each row of each pass milliseconds."""
        return {name: array("q", ids) for name, ids in self.named_ids.items()}

    def check_choice(self, vocab_size: int) -> None:
        """Raise FieldInvalid when no id of the vocabulary may be drawn, even if only while `min_tokens` masks ids."""
        masked = {*self.banned_token_ids, *(self.end_token_ids if self.min_tokens else ())}
        if self.allowed_token_ids:
            left = len(set(self.allowed_token_ids) - masked)
        else:
            left = vocab_size - sum(0 <= token < vocab_size for token in masked)
        if not left:
            field = "allowed_token_ids" if self.allowed_token_ids else "banned_token_ids"
            raise FieldInvalid(f"{field} leaves no token that may be drawn", field)


def check_ids(ids: Iterable[int], param: str, limit: int) -> None:
    """Raise TokenOutOfRange unless every id is in [0, limit)."""
    for index, token in enumerate(ids):
        if not 0 <= token < limit:
            raise TokenOutOfRange(f"{param}[{index}]: token id {token} is not in [0, {limit})", param)


def check_logprobs(count: int | None) -> None:
    """Raise FieldInvalid unless `count` likely tokens may be reported; None reports no log probabilities."""
    _within("logprobs", count or 0, 0, MAX_LOGPROBS)


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one request is speculated on.

    Raises:
        FieldInvalid: a field is out of range, lenience is below 1 in another mode than rejection, or there is a tree
            beside what is for chains alone.
    """

    mode: Mode = Mode.REJECTION
    gamma: int | None = None
    """Tokens to draft in each round; None leaves that to the policy."""
    lenience: float = 1.0
    """ℓ: a draft is kept with probability min(1, p/(ℓ·q)). 1 is exact; less is lossy and for mode rejection only."""
    drafter: str = ""
    """What drafts, by a name that the verifier knows; empty is the verifier's own choice."""
    prediction: tuple[int, ...] = ()
    """The output that the caller expects; it is drafted from before anything else is asked."""
    detail: bool = False
    """Whether every round says what its verdict rests on; that changes no token."""
    policy: GammaPolicy = AUTO
    """How the draft length is chosen, and where drafts end before."""
    tree: TreeOptions | None = None
    """How trees are drafted; None drafts chains."""

    @property
    def lossy(self) -> bool:
        """Whether the distribution of the output may differ from the target's."""
        return self.lenience < 1.0

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma < 0:
            raise FieldInvalid(f"gamma must be at least 0, got {self.gamma}", "speculation.gamma")
        if self.gamma is not None and self.policy.policy is not PolicyKind.AUTO:
            raise FieldInvalid(f"policy {self.policy.policy} chooses the length: leave gamma out", "speculation.gamma")
        _within("speculation.lenience", self.lenience, 0.0, 1.0, open_low=True)
        if self.lenience != 1.0 and self.mode is not Mode.REJECTION:
            raise FieldInvalid(
                f"lenience is for mode {Mode.REJECTION}: mode {self.mode} allows none", "speculation.lenience"
            )
        if self.tree is not None:
            self._check_tree()

    def _check_tree(self) -> None:
        """Refuse what trees are not for."""
        if self.mode not in (Mode.REJECTION, Mode.COUPLED):
            raise FieldInvalid(f"trees are for modes rejection and coupled, not {self.mode}", "speculation.tree")
        if self.gamma is not None or self.policy != AUTO:
            raise FieldInvalid("gamma is the length of chains: leave it out with a tree", "speculation.gamma")
        if self.lossy:
            raise FieldInvalid("trees are judged without lenience: leave one of them out", "speculation.lenience")
        if self.drafter and self.tree and self.tree.drafters:
            raise FieldInvalid("name drafters in the tree or beside it, not both", "speculation.tree.drafters")
        if self.prediction:
            raise FieldInvalid("a prediction is drafted as a chain: leave it or the tree out", "speculation.tree")

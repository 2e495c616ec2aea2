"""The sampling parameters of a request: a frozen value, validated on construction."""

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from specdec.errors import FieldInvalid, TokenOutOfRange
from specdec.sampling.grammar import Grammar

MAX_SEED = 2**63 - 1
"""Largest seed, so that it fits a signed 64-bit integer."""
MAX_LOGPROBS = 20
"""Largest number of likely tokens that are reported with each committed one."""


MAX_ANSWER_LOGPROBS = 2**20
"""Most log probabilities of the outputs of one request: all tokens, times one more than the likely ones with each."""


MAX_PROMPT_LOGPROBS = 2**16
"""Most log probabilities of one prompt: its tokens, times one more than the likely tokens reported with each."""


class FinishReason(StrEnum):
    """Why a generation ended, named as in OpenAI's API."""

    STOP = "stop"
    """It reached an end token or a stop string."""
    LENGTH = "length"
    """It reached the token limit or the end of the context."""


def check_range(name: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    """Raise FieldInvalid unless low <= value <= high (low < value when `open_low`); NaN fails."""
    if not (low < value if open_low else low <= value) or not value <= high:
        bracket = "(" if open_low else "["
        raise FieldInvalid(f"{name} must be in {bracket}{low:g}, {high:g}], got {value}", name)


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of the function from logits to a distribution; target, drafter and plain decoding use the same value.

    Raises:
        FieldInvalid: a field is out of range or not a number.
    """

    temperature: float = 1.0
    """Divides the logits; 0 is greedy decoding."""
    top_p: float = 1.0
    """Probability mass of the nucleus; 1 is off."""
    top_k: int = 0
    """Number of most likely tokens kept; 0 is off."""
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
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that never appear in the output: the last id of each may not follow the others."""
    grammar: Grammar | None = None
    """Grammar that the output must follow; None allows any text."""

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0.0, 2.0)
        check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        check_range("top_k", self.top_k, 0, 2**31 - 1)
        check_range("min_p", self.min_p, 0.0, 1.0)
        check_range("seed", self.seed, 0, MAX_SEED)
        check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_range("repetition_penalty", self.repetition_penalty, 0.0, 2.0, open_low=True)
        check_range("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if not all(self.bad_words):
            raise FieldInvalid("bad_words must not hold an empty word", "bad_words")
        for token, bias in self.logit_bias.items():
            if token < 0 or not math.isfinite(bias) or not -100.0 <= bias <= 100.0:
                raise FieldInvalid(f"logit_bias[{token}] must be in [-100, 100], got {bias}", "logit_bias")

    @property
    def needs_history(self) -> bool:
        """Whether the distribution depends on earlier tokens: with penalties, `min_tokens` or longer bad words."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
            or self.min_tokens > 0
            or any(len(word) > 1 for word in self.bad_words)
        )

    def barred(self, output: Sequence[int]) -> list[int]:
        """Ids that would complete one of the bad words after `output`."""
        return [word[-1] for word in self.bad_words if _ends(output, word[:-1])]

    @property
    def ranking(self) -> "SamplingParams":
        """The parameters used to rank tokens: at temperature 0, whose distribution has one token, unfiltered ones."""
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
            "bad_words": {token for word in self.bad_words for token in word},
        }

    @cached_property
    def id_arrays(self) -> "Mapping[str, array[int]]":
        """`named_ids` as int64 arrays, built once: converting long lists for each row of each pass is slow."""
        return {name: array("q", ids) for name, ids in self.named_ids.items()}

    def check_choice(self, vocab_size: int) -> None:
        """Raise FieldInvalid if no id of the vocabulary may be drawn, even if only while `min_tokens` masks ids."""
        masked = {*self.banned_token_ids, *(self.end_token_ids if self.min_tokens else ()), *self.barred(())}
        if self.allowed_token_ids:
            left = len(set(self.allowed_token_ids) - masked)
        else:
            left = vocab_size - sum(0 <= token < vocab_size for token in masked)
        if not left:
            named = [name for name in ("allowed_token_ids", "banned_token_ids", "bad_words") if getattr(self, name)]
            field = named[0] if named else "min_tokens"
            raise FieldInvalid(f"{field} leaves no token that may be drawn", field)


def _ends(tokens: Sequence[int], beginning: tuple[int, ...]) -> bool:
    """Whether `tokens` end with `beginning`."""
    count = len(beginning)
    return not count or (len(tokens) >= count and tuple(tokens[-count:]) == beginning)


def check_ids(ids: Collection[int], param: str, limit: int) -> None:
    """Raise TokenOutOfRange unless every id is in [0, limit)."""
    if not ids or (min(ids) >= 0 and max(ids) < limit):
        return
    for index, token in enumerate(ids):
        if not 0 <= token < limit:
            raise TokenOutOfRange(f"{param}[{index}]: token id {token} is not in [0, {limit})", param)


def check_logprobs(count: int | None, name: str = "logprobs") -> None:
    """Raise FieldInvalid unless `count` likely tokens may be reported; None reports no log probabilities."""
    check_range(name, count or 0, 0, MAX_LOGPROBS)


def check_prompt_logprobs(count: int | None, prompt_len: int) -> None:
    """Raise FieldInvalid unless log probabilities of a prompt may be reported, with `count` likely tokens each."""
    check_logprobs(count, "prompt_logprobs")
    if count is not None and prompt_len * (count + 1) > MAX_PROMPT_LOGPROBS:
        raise FieldInvalid(
            f"prompt_logprobs: {prompt_len} tokens with {count} likely ones each are over the limit of "
            f"{MAX_PROMPT_LOGPROBS} log probabilities",
            "prompt_logprobs",
        )

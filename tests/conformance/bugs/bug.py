"""Definition of a planted bug, and a helper that replaces a function in every module that imports it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

PRODUCT = ("specdec", "drafter_service", "verifier_service", "gateway")


class Law(Enum):
    """Rules that keep the output exact. Each bug breaks one of them."""

    ONE_DISTRIBUTION = "one function makes p, for target, drafter and plain decoding, and sees the drafts before a row"
    Q_AS_SAMPLED = "q̂ on the wire is the very q̂ that was sampled"
    GRAMMAR = "a grammar masks every row by the tokens before it, the bonus row too"
    ACCEPT = "a draft is kept iff u·q(x) < p(x): nothing is divided, p(x) = 0 is never kept"
    RESIDUAL = "after a rejection the token is from (p - q̂)₊, after a full acceptance from p"
    GREEDY = "temperature 0 is the plain argmax, ties broken alike"
    POINT_MASS = "a draft that was not sampled is a point mass"
    USE = "whether a draft is used never depends on the draft itself"
    BLOCK = "block verification keeps the largest success, and draws no number twice"
    COUPLING = "coupled mode emits the target's own draw, a function of (seed, position, target)"
    LENIENCE = "lenience is off unless asked for, and has its published law"
    SIBLINGS = "each form of siblings has its own rule"
    CUT = "cut first, count after; the earliest end wins; γ never passes the room left"
    KV = "KV and drafts follow the committed tokens and nothing else"
    ATTENTION = "every layer attends as its model was trained to"
    LOGPROBS = "log probabilities are the target's own, before any parameter of the request"
    VOCABULARY = "only ids of the tokenizer are ever chosen"
    RANDOMNESS = "every number is a function of (seed, position, purpose), and no two purposes share one"


@dataclass(frozen=True)
class Bug:
    """A known way to break exactness."""

    name: str
    law: Law
    plant: Callable[[pytest.MonkeyPatch], None]
    caught_by: tuple[str, ...] = ()
    """Names of the checks that must fail with the bug."""
    harmless_to: tuple[str, ...] = ()
    """Names of the checks that must pass with the bug. A mistake in the drafter alone costs speed, not exactness."""

    def __str__(self) -> str:
        return self.name


def everywhere(patch: pytest.MonkeyPatch, original: object, planted: Any) -> None:
    """Replace a function of the product in every product module that has imported it."""
    found = False
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PRODUCT:
            for attribute, value in list(vars(module).items()):
                if value is original:
                    patch.setattr(module, attribute, planted)
                    found = True
    assert found, f"{original} is held by no module"

"""`specdec prove`: test over HTTP whether a deployment's speculation preserves the target's distribution."""

import json
import math
import random
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from rich.console import Console

from specdec.cli.exit_codes import Unreachable
from specdec.errors import SpecdecError

Sequences = Sequence[tuple[str, ...]]
_PROMPTS = (
    "import os\nimport sys\n\n\ndef main(",
    "Once upon a time there was",
    "for i in range(10):\n    ",
    "The capital of France is Paris. The capital of France is",
)
_IDENTITY_TOKENS = 48
_SAMPLED_TOKENS = 5
"""Tokens of each sampled sequence. The first comes from the prompt's pass; drafts can only affect the others."""
_SECONDS = 120.0

Call = Callable[[str, Mapping[str, Any] | None], Mapping[str, Any]]
"""Sends a JSON body to a URL, or GET for None; returns the JSON response."""


class Refused(SpecdecError, reason="REFUSED"):
    """The server refuses a request that the proof requires."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of the proof."""

    url: str
    """Base URL of the deployment."""
    reference: str = ""
    """Base URL of the same model without drafts; if empty, plain requests go to the deployment itself."""
    samples: int = 400
    """Sequences drawn from each side."""
    alpha: float = 0.001
    """False-alarm rate: the share of exact deployments that fail."""
    streams: int = 8
    """Number of concurrent requests."""

    @property
    def permutations(self) -> int:
        """Number of permutations, enough for p-values below alpha."""
        return max(199, round(2 / self.alpha))


@dataclass(frozen=True, slots=True)
class Proof:
    """The results of both tests."""

    prompts: int
    identical: int
    """Number of prompts whose greedy tokens are the same with and without drafts."""
    samples: int
    p: float
    alpha: float
    accepted: int | None
    """Number of draft tokens accepted in the tests; None if the server does not report it."""

    @property
    def verdict(self) -> str:
        """`exact`, `not exact`, or `nothing was drafted`."""
        if self.identical < self.prompts or self.p <= self.alpha:
            return "not exact"
        return "nothing was drafted" if self.accepted == 0 else "exact"

    def report(self) -> dict[str, Any]:
        """The JSON output of the proof."""
        return {**asdict(self), "verdict": self.verdict}


class DecodingWay:
    """One of the two compared ways to decode: a server and its options."""

    def __init__(self, call: Call, url: str, speculation: Mapping[str, Any]) -> None:
        self._call = call
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._extra = speculation
        self._model = str(call(f"{self._url}/models", None)["data"][0]["id"])

    def complete(self, prompt: str, tokens: int, seed: int | None = None) -> tuple[tuple[str, ...], int | None]:
        """The tokens of a completion, and the number of accepted draft tokens; greedy without a seed.

        Raises:
            Refused: the response has no `logprobs`, which name the tokens.
        """
        sampling = {"temperature": 0.0} if seed is None else {"temperature": 1.0, "seed": seed}
        wanted = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "logprobs": 1}
        answer = self._call(f"{self._url}/completions", {**wanted, **sampling, **self._extra})
        logprobs = answer["choices"][0].get("logprobs")
        if not logprobs:
            raise Refused(f"{self._url} answers without logprobs, which name the tokens")
        counts = (answer.get("metrics") or {}).get("speculative_decoding") or {}
        return tuple(logprobs["tokens"]), counts.get("num_accepted_draft_tokens")


def prove(plan: Plan, call: Call) -> Proof:
    """Run both tests.

    Raises:
        Unreachable: nothing answers.
        Refused: a server refuses the requests, such as another OpenAI-compatible server without a reference.
    """
    if plan.reference:
        plain, drafted = DecodingWay(call, plan.reference, {}), DecodingWay(call, plan.url, {})
    else:
        plain, drafted = (DecodingWay(call, plan.url, {"speculation": {"mode": mode}}) for mode in ("off", "rejection"))
    seeds = range(plan.samples)
    with ThreadPoolExecutor(plan.streams) as pool:
        greedy = [
            list(pool.map(partial(side.complete, tokens=_IDENTITY_TOKENS), _PROMPTS)) for side in (plain, drafted)
        ]
        # No seed is used twice: equal seeds could give equal tokens, and the two samples would not be independent.
        before = list(pool.map(lambda seed: plain.complete(_PROMPTS[0], _SAMPLED_TOKENS, 2 * seed), seeds))
        after = list(pool.map(lambda seed: drafted.complete(_PROMPTS[0], _SAMPLED_TOKENS, 2 * seed + 1), seeds))
    accepted = [count for _, count in (*greedy[1], *after) if count is not None]
    return Proof(
        prompts=len(_PROMPTS),
        identical=sum(one[0] == other[0] for one, other in zip(*greedy, strict=True)),
        samples=plan.samples,
        p=p_value([tokens for tokens, _ in before], [tokens for tokens, _ in after], plan.permutations),
        alpha=plan.alpha,
        accepted=sum(accepted) if accepted else None,
    )


def http(url: str, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A Call over HTTP.

    Raises:
        Unreachable: nothing answers at the URL.
        Refused: the response is an error or not JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            found: Mapping[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise Refused(f"{url} answers {error.code}: {error.read(512).decode(errors='replace')}") from error
    except ValueError as error:
        raise Refused(f"{url}: {error}") from error
    except OSError as error:
        raise Unreachable(f"nothing answers at {url}: {error}") from error


def show(console: Console, proof: Proof, as_json: bool) -> None:
    """Print the sample sizes, the thresholds and the verdict."""
    if as_json:
        console.print_json(data=proof.report())
        return
    accepted = "unknown" if proof.accepted is None else proof.accepted
    for line in (
        f"greedy tokens       {proof.identical} of {proof.prompts} prompts identical; all must be",
        f"sampled tokens      p = {proof.p:.4g} from {proof.samples} sequences of {_SAMPLED_TOKENS} tokens a side",
        f"threshold           fails at p ≤ {proof.alpha:g}, which is the false-alarm rate",
        f"accepted drafts     {accepted}",
        f"verdict             {proof.verdict}",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def p_value(first: Sequences, second: Sequences, permutations: int, seed: int = 0) -> float:
    """The probability, if both come from one distribution, of a difference at least as large as the observed one.

    The sequences are independent, so under one distribution every division into two sets is equally likely. The p-value
    is therefore valid for any sizes and any vocabulary: at most α of all tests have p ≤ α. The least p-value is
    1 / (permutations + 1).

    Args:
        permutations: number of random divisions to compare with the given one.
    """
    pool, count = _cells([*first, *second]), len(first)
    whole = Counter(chain.from_iterable(pool))
    terms = [n * math.log(n) if n else 0.0 for n in range(len(pool) + 1)]

    def difference() -> float:
        """Half the G statistic of the tokens at each position, summed over the positions, up to a constant."""
        mine = Counter(chain.from_iterable(pool[:count]))
        return math.fsum(terms[mine[cell]] + terms[n - mine[cell]] for cell, n in whole.items())

    given, dice, as_far = difference(), random.Random(seed), 0
    for _ in range(permutations):
        dice.shuffle(pool)
        as_far += difference() >= given
    return (as_far + 1) / (permutations + 1)


def _cells(sequences: Sequences) -> list[tuple[int, ...]]:
    """For each sequence, a number for the token at each position; an ended sequence also has a number for its end."""
    numbers: dict[tuple[int, str | None], int] = {}
    columns = [
        [numbers.setdefault((at, token), len(numbers)) for token in column]
        for at, column in enumerate(zip_longest(*sequences))
    ]
    return list(zip(*columns, strict=True))

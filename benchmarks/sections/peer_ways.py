"""The compared models, the ways to request answers, and the start of each server."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.pair import Pair
from benchmarks.peers.cells import BASE
from benchmarks.peers.servers import Server, hugging_face, ours, vllm_alone
from benchmarks.questions import Conversation, questions
from benchmarks.run import Ask
from benchmarks.sections.scale import Scale
from specdec.cli import known_models

PYTHON = ROOT / "build" / "vllm" / ".venv" / "bin" / "python"
SUFFIX = ROOT / "build" / "arctic"
"""Packages that vLLM's suffix decoding needs and its environment lacks."""
_ON_VLLM = ("--backend", "vllm", "--vllm-python", str(PYTHON))
_PATIENT = ("--start-timeout", "600")
"""Start timeout, because vLLM compiles for minutes with a cold cache."""
_DRAFT = 4
"""Tokens of each of vLLM's drafts."""
_QUESTIONS = 80
"""Largest number of questions of each category."""
LONGEST = 96
"""Largest number of tokens of a chat model's prompt."""


@dataclass(frozen=True, slots=True)
class Way:
    """One peer: a server, and the settings of its requests."""

    name: str
    server: str
    gamma: int | None = None
    """Draft length: 0 for no drafts, for a server that has both."""
    sibling: str = BASE
    """Name of the way that serves without drafts on this server."""
    learns: bool = False
    """Whether its choice adapts to the load."""
    one_by_one: bool = False
    """Whether it answers one request after another."""
    only_exactness: bool = False


WAYS = (
    Way(BASE, BASE),
    Way("vLLM draft model", "vLLM draft model"),
    Way("vLLM ngram", "vLLM ngram"),
    Way("vLLM suffix", "vLLM suffix"),
    Way("HF plain", "HF assisted", 0, only_exactness=True),
    Way("HF assisted", "HF assisted", sibling="HF plain", one_by_one=True),
    Way("HF prompt lookup", "HF prompt lookup", sibling="HF plain", one_by_one=True),
    Way("ours, off", "ours", 0),
    Way("ours, auto", "ours", sibling="ours, off", learns=True),
    Way("ours on vLLM, off", "ours on vLLM", 0),
    Way("ours on vLLM, auto", "ours on vLLM", sibling="ours on vLLM, off", learns=True),
)


@dataclass(frozen=True, slots=True)
class Contest:
    """A pair of models, its requests, and the arguments of our system."""

    model: str
    pair: Pair
    prompts: Sequence[Ask]
    """Prompts of all turns. After the last one, the first follows again."""
    turns: int
    arguments: Sequence[str] = ()
    """Arguments of `specdec up`, in addition to the models."""


def contests(scale: Scale) -> Iterator[Contest]:
    """Yield the demo pair, and the chat model if it is on this machine."""
    tokens, chat_tokens = scale.peers_tokens
    turns, chat_turns = scale.peers_turns
    count = (turns + 1) * sum(scale.sessions) + turns * scale.peers_alone
    yield Contest("demo", scale.pair, scale.pair.asks(count, scale.prompt, tokens), turns, ("--local", "suffix"))
    chat = known_models.find(scale.chat) if scale.chat else None
    if chat is not None:
        drafter = known_models.find(f"{scale.chat}-drafter") or Path(f"{scale.chat}-drafter")
        sources = known_models.KNOWN[scale.chat].local
        conversation = Conversation(chat)
        asked = [each for several in zip(*questions(_QUESTIONS).values(), strict=False) for each in several]
        prompts = [conversation.prompt(each, ()) for each in asked]
        short = [Ask(each, chat_tokens) for each in prompts if len(each) <= LONGEST]
        yield Contest(scale.chat, Pair(chat, drafter), short, chat_turns, ("--drafters", "0", "--local", sources))


def starts(contest: Contest, arguments: Sequence[str]) -> Mapping[str, Callable[[], AbstractContextManager[Server]]]:
    pair, own = contest.pair, (*arguments, *contest.arguments, *_PATIENT)
    alone = partial(vllm_alone, PYTHON, SUFFIX, pair.target)
    return {
        BASE: partial(alone, speculative={}),
        "vLLM draft model": partial(alone, speculative=_drafts("draft_model", model=str(pair.drafter))),
        "vLLM ngram": partial(alone, speculative=_drafts("ngram", prompt_lookup_max=4, prompt_lookup_min=2)),
        "vLLM suffix": partial(alone, speculative={"method": "suffix"}),
        "HF assisted": partial(hugging_face, pair, "hf", 2),
        "HF prompt lookup": partial(hugging_face, pair, "hf lookup", 2),
        "ours": partial(ours, pair, *own),
        "ours on vLLM": partial(ours, pair, *own, *_ON_VLLM),
    }


def _drafts(method: str, **more: object) -> Mapping[str, object]:
    return {"method": method, "num_speculative_tokens": _DRAFT, **more}

"""Size of the measurements: the pair, the lengths and the repeats."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.pair import Pair
from specdec.cli import known_models
from specdec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of one run of the benchmarks."""

    pair: Pair
    prompt: int = 64
    """Tokens of a prompt."""
    tokens: int = 160
    """Tokens of an output."""
    asks: int = 4
    """Different prompts."""
    repeats: int = 3
    """Answers of each peer to each prompt."""
    sessions: tuple[int, ...] = (1, 4, 16, 32)
    gammas: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 16)
    contexts: tuple[int, ...] = (64, 256, 768)
    kv_bytes: int = 2**25
    """Budget of a verifier that cannot hold all sessions at once, in bytes."""
    theory: tuple[int, int, int] = (96, 3, 2)
    """Tokens, asks and repeats of the runs over all drafters."""
    theory_gammas: tuple[int, ...] = (1, 3, 5, 8)
    theory_steps: int = 40
    """Rounds in which the costs of the formulas are measured."""
    served: tuple[str, ...] = ("model", "bigram")
    """Drafters whose prediction is also tested through the stack."""
    grid_drafters: tuple[str, ...] = ("model", "prompt_lookup", "ngram", "dead", "slow", "lying")
    grid_temperatures: tuple[str, ...] = ("0", "0.7", "1", "mixed")
    grid_gammas: tuple[int, ...] = (1, 3, 6)
    grid_turns: int = 3
    """Slices of each setting in a cell of the whole stack's grid, and in the table of controllers."""
    grid_tokens: int = 96
    grid_burst: tuple[int, int] = (4, 4)
    """Prompts of a burst in mixed loads, and tokens of each answer."""
    grid_seconds: float = 1.0
    """Seconds of a slice of the whole stack, in its grid and in the table of controllers."""
    grid_slices: tuple[float, int, int] = (3.0, 3, 9)
    """Seconds of a slice, slices of each setting, and further slices of auto and off if needed; for slowed models."""
    grid_steps: tuple[float, ...] = (0.02, 0.0005, 0.002, 0.00005)
    """Seconds of a pass and of each token it computes, for the slowed target and the slowed drafter."""
    shared_steps: tuple[float, ...] = (0.00526, 0.000018, 0.0013, 0.000005)
    """Seconds of a pass and of each token it computes, for an 8B target and a 1B drafter on one H200."""
    shared_factor: float = 10.0
    """Factor by which everything is slowed down on a shared device."""
    shared_slices: tuple[float, int, int] = (6.0, 3, 6)
    """On a shared device: seconds of a slice, slices of each setting, and further slices of auto and off if needed."""
    shared_sessions: tuple[int, ...] = (1, 4, 16, 32, 64)
    shared_gammas: tuple[int, ...] = (4,)
    spec: tuple[int, int] = (2, 40)
    """Questions of each category of Spec-Bench, and tokens of each answer."""
    chat: str = "smollm2"
    """Known model that answers them, or "" for the pair's target."""
    chat_temperatures: tuple[float, ...] = (0.0, 1.0)
    chat_streams: tuple[int, ...] = (1, 4, 16)
    chat_turns: int = 6
    """Turns of each way, after a warm-up."""
    chat_tokens: int = 64
    """Tokens of an answer through the whole system."""
    controller_temperatures: tuple[str, ...] = ("0", "0.7", "1", "mixed")
    controller_gammas: tuple[int, ...] = (1, 3, 6)
    controller_goal: float = 0.95
    rtt_delays: tuple[float, ...] = (0.0, 0.001, 0.005, 0.02, 0.05)
    """Round trips between verifier and drafter, in seconds. The first is none."""
    rtt_steps: tuple[float, float] = (0.084, 0.004)
    """Seconds of a pass of the slowed target, and of a step of the slowed drafter."""
    rtt_gamma: int = 4
    rtt_choice: tuple[int, float, float] = (4, 0.0, 0.016)
    """Sessions, their temperature, and seconds of a drafter's step if the verifier chooses γ."""
    rtt_sessions: int = 1
    rtt_turns: int = 5
    rtt_tokens: int = 64
    capacity_costs: tuple[float, ...] = (0.25, 0.5, 1.0)
    """Durations of a round's draft, in passes of the target."""
    capacity_step: float = 0.15
    """Seconds of a pass of the slowed target."""
    capacity_rows: int = 8
    """Sessions in a pass, and in a drafter's step."""
    capacity_tokens: int = 48
    pingpong_sessions: int = 16
    pingpong_steps: tuple[float, ...] = (0.03, 0.00075, 0.006, 0.00075)
    """Seconds of a pass and of each token it computes, for the slowed target and the slowed drafter."""
    pingpong_most: int = 4
    pingpong_turns: int = 3
    pingpong_tokens: int = 256
    one_core: tuple[str, ...] = ("vLLM plain", "vLLM draft model", "native", "ours on vLLM")
    """Engines compared on one core."""
    one_core_turns: int = 3
    learning: float = 6.0
    """Seconds of our "auto" before the counted turns, in comparisons with other engines."""
    peers: tuple[str, ...] = (
        "vLLM plain", "vLLM draft model", "vLLM ngram", "vLLM suffix", "HF assisted", "HF prompt lookup", "ours",
        "ours on vLLM",
    )  # fmt: skip
    """Compared servers."""
    peers_temperatures: tuple[float, ...] = (0.0, 1.0)
    peers_turns: tuple[int, int] = (5, 2)
    """Turns of each peer in a cell of the pair and of the chat model, after a warm-up with half the tokens."""
    peers_alone: int = 4
    """Factor of the number of turns for a single stream, whose turns are short and vary more."""
    peers_tokens: tuple[int, int] = (96, 32)
    """Tokens of an answer of the pair and of the chat model."""
    peers_samples: int = 400
    """Sampled answers of each peer for the tests of exactness."""
    host_path: tuple[str, ...] = ("vLLM plain", "ours")
    """Servers compared with a one-layer target."""
    host_path_streams: tuple[int, ...] = (16, 64, 256, 1024)
    host_path_answers: int = 512
    """Least number of answers in a slice."""
    host_path_tokens: int = 128
    """Tokens of an answer."""
    host_path_turns: int = 3
    verdict_sessions: tuple[int, ...] = (1, 16)
    verdict_turns: int = 9
    """Passes of a case, and verdicts on each."""
    resume: bool = False
    """Whether to skip cells of the grid and the chat model and costs of drafts already measured at this commit."""
    only: str = ""
    """Part of the names of the measured cells of the chat model."""
    compiled: bool = True
    """Whether our models are compiled, as in `specdec up --compile`."""


def quick(pair: Pair) -> Scale:
    """Return a scale that takes seconds instead of minutes and only shows that the code works."""
    return Scale(
        pair,
        prompt=8,
        tokens=8,
        asks=1,
        repeats=1,
        sessions=(1, 2),
        gammas=(1, 2),
        contexts=(8, 16),
        theory=(10, 1, 1),
        theory_gammas=(1, 2),
        theory_steps=3,
        served=("model",),
        controller_temperatures=("1",),
        controller_gammas=(1,),
        grid_drafters=("model", "dead", "lying"),
        grid_temperatures=("1",),
        grid_gammas=(1,),
        grid_turns=1,
        grid_tokens=8,
        grid_seconds=0.1,
        grid_slices=(0.1, 1, 1),
        grid_steps=(0.002, 0.0, 0.001, 0.0),
        shared_factor=0.5,
        shared_slices=(0.1, 1, 0),
        shared_sessions=(2,),
        rtt_delays=(0.0, 0.005),
        rtt_steps=(0.01, 0.001),
        rtt_turns=1,
        rtt_choice=(1, 0.0, 0.001),
        rtt_tokens=8,
        capacity_costs=(0.5,),
        capacity_step=0.02,
        capacity_rows=2,
        capacity_tokens=12,
        pingpong_sessions=4,
        pingpong_steps=(0.002, 0.0005, 0.001, 0.0),
        pingpong_turns=1,
        pingpong_tokens=16,
        one_core=("native",),
        one_core_turns=1,
        learning=0.0,
        peers=("ours",),
        peers_temperatures=(1.0,),
        peers_turns=(1, 1),
        peers_alone=1,
        peers_tokens=(8, 8),
        peers_samples=8,
        host_path=("ours",),
        host_path_streams=(4,),
        host_path_answers=4,
        host_path_tokens=12,
        host_path_turns=1,
        verdict_sessions=(2,),
        verdict_turns=1,
        spec=(1, 6),
        chat="",
        chat_temperatures=(0.0,),
        chat_streams=(1,),
        chat_turns=1,
        chat_tokens=8,
        compiled=False,
    )


def chat_target(scale: Scale) -> Path:
    """Return the folder of the chat model, or of the pair's target if the scale has none.

    Raises:
        ConfigError: the chat model is not on this machine.
    """
    if not scale.chat:
        return scale.pair.target
    found = known_models.find(scale.chat)
    if found is None:
        raise ConfigError(f"{scale.chat} is not on this machine yet: specdec models get {scale.chat}")
    return found

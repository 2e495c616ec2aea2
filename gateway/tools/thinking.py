"""Formats in which models write their thinking before an answer, by name. Add a new one to `THINKING`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.tools.parsers import overlap
from gateway.tools.values import Thought


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """Tags around the thinking."""

    name: str
    opening: str
    closing: str
    lead: str = ""
    """Prefix of an answer without thinking."""
    other_opening: str = ""
    """Another spelling of the opening tag; empty if there is none."""
    other_closing: str = ""
    """Another spelling of the closing tag; empty if there is none."""

    @property
    def openings(self) -> tuple[str, ...]:
        """Spellings of the opening tag."""
        return (self.opening, self.other_opening) if self.other_opening else (self.opening,)

    @property
    def closings(self) -> tuple[str, ...]:
        """Spellings of the closing tag."""
        return (self.closing, self.other_closing) if self.other_closing else (self.closing,)

    @property
    def tags(self) -> tuple[str, str]:
        """Tags that may be special tokens."""
        return self.opening, self.closing

    def begun_in(self, prompt: str) -> bool:
        """Whether the end of a prompt opens the thinking."""
        return _ends(prompt, self.opening) and not self.closed_in(prompt)

    def closed_in(self, prompt: str) -> bool:
        """Whether the end of a prompt closes the thinking, so the answer has none."""
        return _ends(prompt, self.closing)


_NEAR = 8
"""Most characters between a tag and the end of the prompt."""
_ALL = (
    ThinkingFormat("think", "<think>", "</think>"),
    ThinkingFormat("mistral", "[THINK]", "[/THINK]"),
    ThinkingFormat("kimi", "◁think▷", "◁/think▷"),
    ThinkingFormat("seed_oss", "<seed:think>", "</seed:think>"),
    ThinkingFormat(
        "granite",
        "Here is my thought process:",
        "Here is my response:",
        other_opening="Here's my thought process:",
        other_closing="Here's my response:",
    ),
)
THINKING: Mapping[str, ThinkingFormat] = {each.name: each for each in _ALL}
HARMONY = "gpt-oss"
"""Name of the format with channels, which has a separate parser."""
_PARSERS: Mapping[str, Sequence[str]] = {
    "think": (
        "deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45", "glm45", "glm47",
        "granite_thinking_parser", "holo2", "hunyuan_a13b", "kimi_k2", "mimo", "minimax_m2", "minimax_m2_append_think",
        "nemotron_v3", "olmo3", "qwen3", "step3", "step3p5",
    ),
    HARMONY: ("openai_gptoss", "gptoss"),
}  # fmt: skip
"""vLLM's parser names by format. Parsers of other formats have the format's name."""
AUTO, OFF = "auto", "none"
"""Settings that detect the format from the chat template, and that disable the parsing of thinking."""


def check_parser(name: str) -> str:
    """Return the format of a parser name, `auto` or `none`; raises ValueError for an unknown parser."""
    known = {own: form for form, names in _PARSERS.items() for own in names}
    found = known.get(name, name)
    if found not in (AUTO, OFF, HARMONY, *THINKING):
        names = sorted({AUTO, OFF, HARMONY, *THINKING, *known})
        raise ValueError(f"there is no reasoning parser {name!r}, there are {', '.join(names)}")
    return found


def chosen(parser: str, found: str) -> str:
    """Return the format for a setting, given the template's format `found`; empty for none."""
    return {AUTO: found, OFF: ""}.get(parser, parser)


def _ends(prompt: str, tag: str) -> bool:
    """Whether a tag is near the end of a prompt. A tag in a user's text is further away, before the message's end."""
    return tag in prompt[-len(tag) - _NEAR :]


def thinking_of(template: str | None) -> str:
    """Return the name of the thinking format in a chat template; empty if it has none."""
    return next((each.name for each in _ALL if any(tag in (template or "") for tag in each.tags)), "")


def template_arguments(effort: str | None, enabled: bool | None, budget: int | None) -> dict[str, Any]:
    """Return a caller's thinking options under the names that chat templates read.

    Args:
        effort: OpenAI's reasoning effort.
        enabled: whether the model thinks; None derives it from the effort.
        budget: most tokens of thinking.
    """
    found: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if enabled is None and effort == "none":
        enabled = False
    if enabled is not None:
        found |= {"enable_thinking": enabled, "thinking": enabled}
    return found if budget is None else found | {"thinking_budget": budget}


Step = Callable[[], list[Thought | str] | None]
"""Parser step: consumes held text, or returns None to wait for more."""


class ThinkingReader:
    """Splits the text of an answer incrementally into thinking and the rest."""

    def __init__(self, form: ThinkingFormat, begun: bool) -> None:
        """Args: begun: whether the prompt opened the thinking."""
        self._form = form
        self._held = ""
        self._begun = begun
        self._step: Step = self._read_beginning

    def feed(self, text: str) -> list[Thought | str]:
        """Add text; return the pieces that are now final."""
        self._held += text
        pieces: list[Thought | str] = []
        while self._held and (found := self._step()) is not None:
            pieces += found
        return pieces

    def end(self) -> list[Thought | str]:
        """End the text; return the remaining pieces."""
        rest, self._held = self._held, ""
        if not rest:
            return []
        inside = self._step == self._read_thought or (self._begun and self._step == self._read_beginning)
        return [Thought(rest) if inside else rest]

    def _read_beginning(self) -> list[Thought | str] | None:
        """Read the opening tag, which some models repeat after a prompt that has it."""
        begun = self._held.lstrip()
        opening = next((each for each in self._form.openings if begun.startswith(each)), "")
        if opening:
            self._held, self._step = begun.removeprefix(opening), self._skip_lines(self._read_thought)
        elif any(each.startswith(begun) for each in self._form.openings):
            return None
        else:
            self._step = self._read_thought if self._begun else self._read_answer
        return []

    def _read_thought(self) -> list[Thought | str] | None:
        closings, held = self._form.closings, self._held
        found = min(((at, each) for each in closings if (at := held.find(each)) >= 0), default=None)
        if found:
            self._held, self._step = held[found[0] + len(found[1]) :], self._skip_lines(self._read_answer)
            thought = held[: found[0]].rstrip("\n")
            return [Thought(thought)] if thought else []
        certain = held[: len(held) - max(overlap(held, each) for each in closings)].rstrip("\n")
        self._held = held[len(certain) :]
        return [Thought(certain)] if certain else None

    def _skip_lines(self, then: Step) -> Step:
        """Return a step that skips empty lines next to a tag."""

        def skip() -> list[Thought | str] | None:
            self._held = self._held.lstrip("\n")
            if not self._held:
                return None
            self._step = then
            return []

        return skip

    def _read_answer(self) -> list[Thought | str]:
        text, self._held = self._held, ""
        return [text]

"""Format in which a turn's output is parsed for thinking and tool calls, identical on every gateway."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from gateway.tools.formats import FORMATS
from gateway.tools.harmony import HarmonyParser
from gateway.tools.parsers import PlainParser, ToolParser
from gateway.tools.thinking import THINKING, ThinkingFormat, ThinkingReader
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams

_HARMONY = FORMATS["gpt-oss"]
_ANALYSIS, _FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_NEXT = "<|end|><|start|>assistant"


@dataclass(frozen=True, slots=True)
class Reading:
    """Parse options of an answer."""

    tool_format: str = ""
    """Format of tool calls; empty if there are no tools."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of string parameters, by tool name."""
    thinking: str = ""
    """Format of thinking; empty if there is none."""
    begun: bool = False
    """Whether the prompt opens the thinking."""
    parallel: bool = True
    """Whether calls after the first are returned; a caller may accept only one."""
    custom: Sequence[str] = ()
    """Names of the custom tools."""
    shown: bool = True
    """Whether the message has the thinking."""

    def __bool__(self) -> bool:
        return bool(self.tool_format or self.thinking)

    @property
    def tags(self) -> frozenset[str]:
        """Names of the special tokens to parse."""
        if self.thinking == _HARMONY.name:
            return frozenset(_HARMONY.tags)
        thinking = THINKING[self.thinking].tags if self.thinking else ()
        return frozenset((*(FORMATS[self.tool_format].tags if self.tool_format else ()), *thinking))

    def parser(self) -> ToolParser:
        """Create a parser of tool calls."""
        if self.thinking == _HARMONY.name:
            return HarmonyParser()
        return FORMATS[self.tool_format].parser(self.texts) if self.tool_format else PlainParser()

    def thinking_reader(self) -> ThinkingReader | None:
        """Create a parser of thinking; None if there is no thinking, or the call parser handles it."""
        form = THINKING.get(self.thinking)
        return ThinkingReader(form, self.begun) if form else None

    def after(self, prompt: str) -> "Reading":
        """Return a copy for output that follows a prompt with this end."""
        form = THINKING.get(self.thinking)
        if form is None:
            return self
        begun, closed = form.begun_in(prompt), form.closed_in(prompt)
        return replace(self, thinking="" if closed else self.thinking, begun=begun)

    def bound(self, sampling: SamplingParams, budget: int | None = None) -> SamplingParams:
        """Return a copy of the sampling whose grammar applies after thinking of at most `budget` tokens."""
        form, grammar = self._form(), sampling.grammar
        if form is None or (grammar is None and budget is None):
            return sampling
        opening, closing = ("\t".join(each) for each in (form.openings, form.closings))
        behind = "\n".join([closing] if self.begun else [opening, closing, *([form.lead] if form.lead else [])])
        if grammar is None:
            return replace(sampling, grammar=Grammar(GrammarKind.ANY, "*", behind, budget))
        return replace(sampling, grammar=replace(grammar, behind=behind, budget=budget))

    def _form(self) -> ThinkingFormat | None:
        """Return the format of the thinking. With channels, a call or an answer opens its own channel after it."""
        if self.thinking != _HARMONY.name:
            return THINKING.get(self.thinking)
        lead = "" if self.tool_format else _FINAL
        return ThinkingFormat(self.thinking, _ANALYSIS, _NEXT + lead, lead)

    def text(self) -> str:
        """Serialize to text for `parse`; empty if there is nothing to parse."""
        if not self:
            return ""
        fields = {name: value for name, value in asdict(self).items() if name != "custom" or value}
        if self.shown:
            del fields["shown"]
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> "Reading":
        """Parse the text of `text`, or the name of a call format."""
        if not text.startswith("{"):
            return cls(text)
        return cls(**json.loads(text))

"""How the output of a turn is read: what is thought in it, and what is called; the same on every gateway."""

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
    """What an answer may have beside text."""

    tool_format: str = ""
    """The format of calls; empty where there are no tools to call."""
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By the name of a tool, the parameters whose values are texts."""
    thinking: str = ""
    """The format of what is thought; empty where nothing is."""
    begun: bool = False
    """Whether the prompt opens the thinking."""
    parallel: bool = True
    """Whether calls behind the first are read, too; the caller may take only one."""

    def __bool__(self) -> bool:
        return bool(self.tool_format or self.thinking)

    @property
    def tags(self) -> frozenset[str]:
        """The names of special tokens that are read."""
        if self.thinking == _HARMONY.name:
            return frozenset(_HARMONY.tags)
        thinking = THINKING[self.thinking].tags if self.thinking else ()
        return frozenset((*(FORMATS[self.tool_format].tags if self.tool_format else ()), *thinking))

    def parser(self) -> ToolParser:
        """A new parser of calls."""
        if self.thinking == _HARMONY.name:
            return HarmonyParser()
        return FORMATS[self.tool_format].parser(self.texts) if self.tool_format else PlainParser()

    def thinking_reader(self) -> ThinkingReader | None:
        """A new reader of what is thought; None where calls, thinking and text are read together, or none is."""
        form = THINKING.get(self.thinking)
        return ThinkingReader(form, self.begun) if form else None

    def behind(self, prompt: str) -> "Reading":
        """The same, behind a prompt that ends like this."""
        form = THINKING.get(self.thinking)
        if form is None:
            return self
        begun, closed = form.begun_in(prompt), form.closed_in(prompt)
        return replace(self, thinking="" if closed else self.thinking, begun=begun)

    def bound(self, sampling: SamplingParams, budget: int | None = None) -> SamplingParams:
        """The same sampling, with its grammar behind what is thought, of which there are at most `budget` tokens."""
        form, grammar = self._form(), sampling.grammar
        if form is None or (grammar is None and budget is None):
            return sampling
        lines = [form.closing] if self.begun else [form.opening, form.closing, *([form.lead] if form.lead else [])]
        behind = "\n".join(lines)
        if grammar is None:
            return replace(sampling, grammar=Grammar(GrammarKind.ANY, "*", behind, budget))
        return replace(sampling, grammar=replace(grammar, behind=behind, budget=budget))

    def _form(self) -> ThinkingFormat | None:
        """What stands around the thinking; with channels, a call opens its own, and an answer that of the answer."""
        if self.thinking != _HARMONY.name:
            return THINKING.get(self.thinking)
        lead = "" if self.tool_format else _FINAL
        return ThinkingFormat(self.thinking, _ANALYSIS, _NEXT + lead, lead)

    def text(self) -> str:
        """The reading as text, for `parse`; empty where there is nothing to read."""
        return json.dumps(asdict(self), ensure_ascii=False) if self else ""

    @classmethod
    def parse(cls, text: str) -> "Reading":
        """The reading of a text, or of the name of a format of calls."""
        if not text.startswith("{"):
            return cls(text)
        return cls(**json.loads(text))

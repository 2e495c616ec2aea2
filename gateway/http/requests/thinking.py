"""The fields of a chat that say whether and how much the model thinks before its answer, for its chat template."""

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.http.requests.body import Body
from gateway.http.requests.fields import MAX_INT
from gateway.tools.thinking import template_arguments

Budget = Annotated[int, Field(ge=0, le=MAX_INT)]
"""Most tokens of thinking."""


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class ThinkingBody(Body):
    """Whether the model thinks, in the words of Anthropic and of DeepSeek."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class ThinkingFields(Body):
    """What a chat template may read of the thinking; one that does not read a value ignores it."""

    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingBody | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Budget | None = None

    @property
    def budget(self) -> int | None:
        """Most tokens of thinking, by any of its names; None for as many as the model wants."""
        nested = self.thinking.budget_tokens if self.thinking else None
        given = (self.thinking_token_budget, self.thinking_budget, nested)
        return next((each for each in given if each is not None), None)

    @property
    def thinking_arguments(self) -> dict[str, Any]:
        """The values, by the names under which templates know them."""
        thinks = self.enable_thinking
        if thinks is None and self.thinking is not None and self.thinking.type != "adaptive":
            thinks = self.thinking.type == "enabled"
        return template_arguments(self.reasoning_effort, thinks, self.budget)

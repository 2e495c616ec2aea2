"""The fields of a chat that say whether and how much the model thinks before its answer, for its chat template."""

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.http.requests.body import Body
from gateway.http.requests.fields import MAX_INT

Budget = Annotated[int, Field(ge=0, le=MAX_INT)]
"""Tokens of thinking, for templates that tell the model."""


class ThinkingBody(Body):
    """Whether the model thinks, in the words of Anthropic and of DeepSeek."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class ThinkingFields(Body):
    """What a chat template may read of the thinking; one that does not read a value ignores it."""

    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingBody | None = None
    thinking_budget: Budget | None = None

    @property
    def thinking_arguments(self) -> dict[str, Any]:
        """The values, by the names under which templates know them."""
        found: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            found["reasoning_effort"] = self.reasoning_effort
        thinks = self.enable_thinking
        if thinks is None and self.thinking is not None and self.thinking.type != "adaptive":
            thinks = self.thinking.type == "enabled"
        if thinks is None and self.reasoning_effort == "none":
            thinks = False
        if thinks is not None:
            found |= {"enable_thinking": thinks, "thinking": thinks}
        budget = self.thinking_budget
        if budget is None and self.thinking is not None:
            budget = self.thinking.budget_tokens
        return found if budget is None else found | {"thinking_budget": budget}

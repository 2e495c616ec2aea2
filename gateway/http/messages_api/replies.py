"""Answers of /v1/messages, whole and as events."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import to_json

from gateway.http.replies.blocks import AnswerBlock, BlockEvent, blocks_of
from gateway.http.replies.named_events import NamedEventsWriter
from gateway.http.replies.problems import anthropic_error
from gateway.tools.arguments import arguments_object, arguments_text
from gateway.turns.events import Finished, Output
from specdec.errors import SpecdecError
from specdec.sampling.params import FinishReason


class MessageUsage(BaseModel):
    """Token counts as Anthropic's clients read them."""

    input_tokens: int
    """Prompt tokens that were not found in the prefix cache."""
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int


class MessageReply(BaseModel):
    """The answer of /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(BaseModel):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class MessagesWriter(NamedEventsWriter):
    """Writes the answers of /v1/messages."""

    def whole(self, outputs: Sequence[Output]) -> MessageReply:
        output = outputs[0]
        return self._reply([self._whole(block) for block in blocks_of(output)], output.finished)

    def opening(self) -> Iterator[bytes]:
        yield self._event("message_start", message=self._reply([], None).model_dump())

    def failure(self, error: SpecdecError) -> bytes:
        return self.framed(to_json(anthropic_error(error)))

    def _block(self, event: BlockEvent) -> Iterator[bytes]:
        block, index = event.block, event.block.index
        match event.what:
            case "begin":
                yield self._event("content_block_start", index=index, content_block=_shown(block))
            case "more" if block.kind == "text":
                yield self._event("content_block_delta", index=index, delta={"type": "text_delta", "text": event.more})
            case "more" if block.kind == "thinking":
                delta = {"type": "thinking_delta", "thinking": event.more}
                yield self._event("content_block_delta", index=index, delta=delta)
            case "more":
                delta = {"type": "input_json_delta", "partial_json": event.more}
                yield self._event("content_block_delta", index=index, delta=delta)
            case "end":
                if block.kind == "thinking":
                    delta = {"type": "signature_delta", "signature": self._signature(block)}
                    yield self._event("content_block_delta", index=index, delta=delta)
                yield self._event("content_block_stop", index=index)

    def _end(self, finished: Finished) -> Iterator[bytes]:
        reply = self._reply([], finished)
        delta = {"stop_reason": reply.stop_reason, "stop_sequence": reply.stop_sequence}
        yield self._event("message_delta", delta=delta, usage=reply.usage.model_dump())
        yield self._event("message_stop")

    def _whole(self, block: AnswerBlock) -> dict[str, Any]:
        """Return a block after its end."""
        signed = {"signature": self._signature(block)} if block.kind == "thinking" else {}
        return _shown(block) | signed

    def _signature(self, block: AnswerBlock) -> str:
        """Return the signature of thinking; some clients send back only thinking that has one."""
        return f"{self._started.turn.name}-{block.index}"

    def _reply(self, content: list[dict[str, Any]], finished: Finished | None) -> MessageReply:
        cached = finished.cached_tokens if finished else 0
        return MessageReply(
            id=f"msg_{self._started.turn.name}",
            model=self._started.header.model,
            content=content,
            stop_reason=_reason(finished) if finished else None,
            stop_sequence=(finished.matched_stop or None) if finished else None,
            usage=MessageUsage(
                input_tokens=self._started.prompt_tokens - cached,
                cache_read_input_tokens=cached,
                output_tokens=finished.completion_tokens if finished else 0,
            ),
        )


def _reason(finished: Finished) -> Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]:
    if finished.reason is FinishReason.LENGTH:
        return "max_tokens"
    if finished.matched_stop:
        return "stop_sequence"
    return "tool_use" if finished.called else "end_turn"


def _shown(block: AnswerBlock) -> dict[str, Any]:
    """Return a block as received so far."""
    if block.kind == "text":
        return {"type": "text", "text": block.content}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": block.content, "signature": ""}
    arguments = arguments_object(arguments_text(block.content), float)
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}

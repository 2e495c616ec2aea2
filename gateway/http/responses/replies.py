"""Answers of /v1/responses, whole and as events."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from gateway.http.replies.blocks import AnswerBlock, BlockEvent, blocks_of
from gateway.http.replies.logprobs import TokenBytes, chat_scores
from gateway.http.replies.named_events import NamedEventsWriter
from gateway.http.replies.problems import error_body
from gateway.http.responses.body import SHOWN, ResponsesBody
from gateway.turns.events import Finished, Output, Started
from specdec.errors import SpecdecError
from specdec.sampling.params import FinishReason

Status = Literal["completed", "incomplete", "in_progress", "failed"]


class ResponseUsage(BaseModel):
    """Token counts as the Responses API names them."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseReply(BaseModel):
    """The answer of /v1/responses, which repeats fields of the request."""

    id: str
    """Id of the response, for the next request's `previous_response_id`."""
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_p: float | None = None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


class DeletedResponse(BaseModel):
    """DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ResponsesWriter(NamedEventsWriter):
    """Writes the answers of /v1/responses."""

    def __init__(self, started: Started, asked: ResponsesBody, token_bytes: TokenBytes) -> None:
        super().__init__(started)
        self._asked = asked
        self._token_bytes = token_bytes
        self._sent = 0

    def whole(self, outputs: Sequence[Output]) -> ResponseReply:
        output = outputs[0]
        return self._finished(blocks_of(output), output.finished)

    def opening(self) -> Iterator[bytes]:
        begun = self._reply("in_progress", []).model_dump()
        yield self._numbered("response.created", response=begun)
        yield self._numbered("response.in_progress", response=begun)

    def failure(self, error: SpecdecError) -> bytes:
        detail = error_body(error).error
        failed = self._reply("failed", []).model_copy(
            update={"error": {"code": detail.code or "server_error", "message": detail.message}}
        )
        return self.framed(self._numbered("response.failed", response=failed.model_dump()))

    def _block(self, event: BlockEvent) -> Iterator[bytes]:
        match event.block.kind:
            case "text":
                yield from self._text(event)
            case "thinking":
                yield from self._thinking(event)
            case "call":
                yield from self._call(event, "response.function_call_arguments", "arguments", name=event.block.name)
            case "custom":
                yield from self._call(event, "response.custom_tool_call_input", "input")

    def _thinking(self, event: BlockEvent) -> Iterator[bytes]:
        block = event.block
        item = self._item(block, "in_progress")
        place = {"item_id": item["id"], "output_index": block.index, "content_index": 0}
        match event.what:
            case "begin":
                yield self._numbered(
                    "response.output_item.added", output_index=block.index, item=item | {"content": []}
                )
            case "more":
                yield self._numbered("response.reasoning_text.delta", **place, delta=event.more)
            case "end":
                yield self._numbered("response.reasoning_text.done", **place, text=block.content)
                yield self._done(block)

    def _text(self, event: BlockEvent) -> Iterator[bytes]:
        block = event.block
        item = self._item(block, "in_progress")
        place = {"item_id": item["id"], "output_index": block.index, "content_index": 0}
        match event.what:
            case "begin":
                yield self._numbered(
                    "response.output_item.added", output_index=block.index, item=item | {"content": []}
                )
                yield self._numbered("response.content_part.added", **place, part=self._part(block))
            case "more":
                scores = chat_scores(event.tokens, self._token_bytes)
                yield self._numbered("response.output_text.delta", **place, delta=event.more, logprobs=scores)
            case "end":
                scores = chat_scores(block.tokens, self._token_bytes)
                yield self._numbered("response.output_text.done", **place, text=block.content, logprobs=scores)
                yield self._numbered("response.content_part.done", **place, part=self._part(block))
                yield self._done(block)

    def _call(self, event: BlockEvent, prefix: str, content: str, **more: str) -> Iterator[bytes]:
        block = event.block
        item = self._item(block, "in_progress")
        place = {"item_id": item["id"], "output_index": block.index}
        match event.what:
            case "begin":
                yield self._numbered("response.output_item.added", output_index=block.index, item=item)
            case "more":
                yield self._numbered(f"{prefix}.delta", **place, delta=event.more)
            case "end":
                yield self._numbered(f"{prefix}.done", **place, **more, **{content: block.content})
                yield self._done(block)

    def _done(self, block: AnswerBlock) -> bytes:
        return self._numbered("response.output_item.done", output_index=block.index, item=self._ended(block))

    def _end(self, finished: Finished) -> Iterator[bytes]:
        reply = self._finished(self._blocks.known, finished)
        yield self._numbered(f"response.{reply.status}", response=reply.model_dump())

    def _finished(self, blocks: Sequence[AnswerBlock], finished: Finished) -> ResponseReply:
        """Return the whole response: `incomplete` at the limit of tokens, and with a call that is not finished."""
        at_limit = finished.reason is FinishReason.LENGTH
        unfinished = any(block.cut and block.kind in ("call", "custom") for block in blocks)
        reply = self._reply(
            "incomplete" if at_limit or unfinished else "completed", [*map(self._ended, blocks)], finished
        )
        return reply.model_copy(update={"incomplete_details": {"reason": "max_output_tokens"}} if at_limit else {})

    def _numbered(self, name: str, /, **fields: Any) -> bytes:
        self._sent += 1
        return self._event(name, sequence_number=self._sent - 1, **fields)

    def _ended(self, block: AnswerBlock) -> dict[str, Any]:
        """Return the output item of a block after its end."""
        return self._item(block, "incomplete" if block.cut else "completed")

    def _item(self, block: AnswerBlock, status: Status) -> dict[str, Any]:
        """Return the output item of a block as received so far, with this status."""
        own = f"{self._started.turn.name}_{block.index}"
        if block.kind == "call":
            call = {"call_id": block.id, "name": block.name, "arguments": block.content}
            return {"id": f"fc_{own}", "type": "function_call", "status": status, **call}
        if block.kind == "custom":
            call = {"call_id": block.id, "name": block.name, "input": block.content}
            return {"id": f"ctc_{own}", "type": "custom_tool_call", "status": status, **call}
        if block.kind == "thinking":
            thought = {"summary": [], "content": [{"type": "reasoning_text", "text": block.content}]}
            return {"id": f"rs_{own}", "type": "reasoning", "status": status, **thought}
        message = {"role": "assistant", "status": status, "content": [self._part(block)]}
        return {"id": f"msg_{own}", "type": "message", **message}

    def _part(self, block: AnswerBlock) -> dict[str, Any]:
        scores = chat_scores(block.tokens, self._token_bytes)
        return {"type": "output_text", "text": block.content, "annotations": [], "logprobs": scores}

    def _reply(self, status: Status, output: list[dict[str, Any]], finished: Finished | None = None) -> ResponseReply:
        asked, header = self._asked, self._started.header
        shown = {name: value for name, value in asked.model_dump(include=SHOWN).items() if value is not None}
        return ResponseReply(
            id=f"resp_{self._started.turn.name}",
            created_at=header.created,
            status=status,
            model=header.model,
            output=output,
            service_tier=header.priority.value,
            reasoning={"effort": asked.reasoning.effort if asked.reasoning else None, "summary": None},
            text={"format": _format(asked)},
            usage=self._usage(finished) if finished else None,
            **shown,
        )

    def _usage(self, finished: Finished) -> ResponseUsage:
        return ResponseUsage(
            input_tokens=self._started.prompt_tokens,
            input_tokens_details={"cached_tokens": finished.cached_tokens},
            output_tokens=finished.completion_tokens,
            output_tokens_details={"reasoning_tokens": 0},
            total_tokens=self._started.prompt_tokens + finished.completion_tokens,
        )


def _format(asked: ResponsesBody) -> dict[str, Any]:
    chosen = asked.text.format if asked.text else None
    return chosen.model_dump(by_alias=True, exclude_none=True) if chosen else {"type": "text"}

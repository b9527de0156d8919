"""A reply in the making, for every decoder: its blocks as chunks, and what a provider's finish reason means."""

from __future__ import annotations

import json
import uuid
from typing import Literal

from app.schema.errors import LLMError, LLMFailure
from app.schema.message import JSON, Block, ReasoningBlock, TextBlock, ToolCallBlock
from app.schema.stream import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "completed": "stop",
    "tool_calls": "tool-calls",
    "tool_use": "tool-calls",
    "function_call": "tool-calls",
    "length": "max-tokens",
    "max_tokens": "max-tokens",
    "max_output_tokens": "max-tokens",
}
_FILTERED = ("CONTENT_FILTER", "the provider's content filter stopped the reply")
_BROKE_OFF = ("SERVER", "the provider broke off the reply")
FAILED_FINISH: dict[str, tuple[str, str]] = {
    "content_filter": _FILTERED,
    "content_filtered": _FILTERED,
    "guardrail_intervened": _FILTERED,
    "sensitive": _FILTERED,
    "safety": _FILTERED,
    "recitation": _FILTERED,
    "blocklist": _FILTERED,
    "prohibited_content": _FILTERED,
    "spii": _FILTERED,
    "language": _FILTERED,
    "image_safety": _FILTERED,
    "image_recitation": _FILTERED,
    "image_prohibited_content": _FILTERED,
    "model_armor": _FILTERED,
    "refusal": ("REFUSED", "the model refused"),
    "model_context_window_exceeded": ("CONTEXT_WINDOW_EXCEEDED", "the context window was full"),
    "malformed_function_call": ("INVALID_TOOL_CALL", "the model's call did not fit the call format"),
    "malformed_tool_use": ("INVALID_TOOL_CALL", "the model's call did not fit the call format"),
    "unexpected_tool_call": ("INVALID_TOOL_CALL", "the model called a tool that was not offered"),
    "too_many_tool_calls": ("INVALID_TOOL_CALL", "the model called too many tools"),
    "malformed_response": ("MALFORMED_RESPONSE", "the model's output could not be read by its provider"),
    "missing_thought_signature": ("INVALID_REQUEST", "a call of the history lacks its thought signature"),
    "other": _BROKE_OFF,
    "malformed_model_output": ("MALFORMED_RESPONSE", "the model's output could not be read by its provider"),
    "insufficient_system_resource": _BROKE_OFF,
    "network_error": _BROKE_OFF,
    "abort": _BROKE_OFF,
}
"""Reasons of vendors that are no success, lower-cased; any other unknown reason becomes its own upper-cased code."""


DraftKind = Literal["text", "reasoning", "tool-call"]


class Draft:
    """One open block. `id` and `name` belong to calls, `signature` to reasoning; a decoder may set them later."""

    __slots__ = ("closed", "id", "index", "kind", "name", "parts", "signature")

    def __init__(self, index: int, kind: DraftKind, call_id: str, name: str) -> None:
        self.index = index
        self.kind: DraftKind = kind
        self.id = call_id
        self.name = name
        self.signature: str | None = None
        self.parts: list[str] = []
        self.closed = False

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def complete(self) -> bool:
        """For a call: whether its arguments are whole JSON by now."""
        try:
            json.loads(self.text)
        except (ValueError, RecursionError):
            return False
        return True

    def block(self) -> Block:
        match self.kind:
            case "text":
                return TextBlock(self.text)
            case "reasoning":
                return ReasoningBlock(self.text, self.signature)
            case "tool-call":
                return ToolCallBlock(self.id, self.name, self.text)


class ReplyWriter:
    """Turns what a decoder finds into the chunks of one reply, in the grammar of `schema/stream.py`.

    `take()` gives the chunks since the last take. Call ids are unique: a missing or doubled one gets a minted id,
    unique beyond this reply, because some servers number from zero in each turn and histories pair by id.
    """

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self._blocks = 0
        self._ids: set[str] = set()
        self._chunks: list[Chunk] = []

    @property
    def has_blocks(self) -> bool:
        return self._blocks > 0

    @property
    def calls(self) -> list[Draft]:
        return [draft for draft in self.drafts if draft.kind == "tool-call"]

    @property
    def has_text(self) -> bool:
        return any(draft.kind == "text" for draft in self.drafts)

    def open(self, kind: DraftKind, *, call_id: str = "", name: str = "") -> Draft:
        """Start a block; for a call with the id the server gave it, or "" to have one minted."""
        if kind == "tool-call":
            call_id = self._unique(call_id)
        draft = Draft(self._blocks, kind, call_id, name)
        self._blocks += 1
        self.drafts.append(draft)
        self._chunks.append(BlockStart(draft.index, kind))
        return draft

    def add(self, draft: Draft, piece: str) -> None:
        """A piece of text, thinking or raw arguments. A call's piece may be empty and bring only its name."""
        if not piece and draft.kind != "tool-call":
            return
        draft.parts.append(piece)
        match draft.kind:
            case "text":
                self._chunks.append(TextDelta(draft.index, piece))
            case "reasoning":
                self._chunks.append(ReasoningDelta(draft.index, piece))
            case "tool-call":
                self._chunks.append(ToolCallDelta(draft.index, draft.id, draft.name or None, piece))

    def put(self, kind: str, block: Block) -> None:
        """A block that comes whole, for example one of a kind that only its vendor understands."""
        self._chunks += (BlockStart(self._blocks, kind), BlockEnd(self._blocks, block))
        self._blocks += 1

    def close(self, draft: Draft) -> None:
        if not draft.closed:
            draft.closed = True
            self._chunks.append(BlockEnd(draft.index, draft.block()))

    def close_all(self) -> None:
        for draft in self.drafts:
            self.close(draft)

    def take(self) -> list[Chunk]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def _unique(self, call_id: str) -> str:
        unique = call_id if call_id and call_id not in self._ids else f"{call_id or 'call'}-{uuid.uuid4().hex[:12]}"
        self._ids.add(unique)
        return unique


def finish_of(
    reason: str, reply: ReplyWriter, *, who: str, model: str | None, refusal: str = "", replay_state: JSON = None
) -> Finish:
    """The finish of a reply that a server ended properly; `reason` is its word in lower case, "" when it gave none.

    Raises `STREAM_CLOSED` when no reason was given and a call is not whole.
    """
    if reason in FAILED_FINISH or (refusal and not reply.has_text and not reply.calls):
        code, text = FAILED_FINISH.get(reason, FAILED_FINISH["refusal"])
        return _failed(code, f"{text}: {refusal}" if refusal else text, model)
    if reason and reason not in FINISH:
        return _failed(reason.upper(), f"{who} ended the reply with {reason!r}", model)
    if FINISH.get(reason) == "max-tokens":
        return Finish("max-tokens", model=model, replay_state=replay_state)
    if not reply.has_blocks:
        return _failed("EMPTY_RESPONSE", f"{who} sent an empty reply", model)
    if reply.calls:
        if not reason and not all(call.complete for call in reply.calls):
            raise LLMError(f"{who} closed the stream inside a tool call", "STREAM_CLOSED")
        return Finish("tool-calls", model=model, marked=bool(reason), replay_state=replay_state)
    return Finish("stop", model=model, marked=bool(reason), replay_state=replay_state)


def _failed(code: str, text: str, model: str | None) -> Finish:
    return Finish("error", LLMFailure(text, code), model=model)

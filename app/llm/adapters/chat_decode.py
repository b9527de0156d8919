"""Chat completions, incoming: wire objects to chunks, with every oddity of compatible servers. No input or output.

One decoder serves one reply. `feed` takes a parsed stream event (or a whole completion), `end` closes the reply.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

from app.llm.failures import HINTS, in_band
from app.schema.errors import LLMError, LLMFailure
from app.schema.message import JSON, ReasoningBlock, TextBlock, ToolCallBlock
from app.schema.stream import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from app.schema.usage import Usage

FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "tool_calls": "tool-calls",
    "tool_use": "tool-calls",
    "function_call": "tool-calls",
    "length": "max-tokens",
    "max_tokens": "max-tokens",
}
_FILTERED = ("CONTENT_FILTER", "the provider's content filter stopped the reply")
_BROKE_OFF = ("SERVER", "the provider broke off the reply")
FAILED_FINISH: dict[str, tuple[str, str]] = {
    "content_filter": _FILTERED,
    "sensitive": _FILTERED,
    "safety": _FILTERED,
    "recitation": _FILTERED,
    "prohibited_content": _FILTERED,
    "refusal": ("REFUSED", "the model refused"),
    "model_context_window_exceeded": ("CONTEXT_WINDOW_EXCEEDED", "the context window was full"),
    "malformed_function_call": ("INVALID_TOOL_CALL", "the model's call did not fit the call format"),
    "insufficient_system_resource": _BROKE_OFF,
    "network_error": _BROKE_OFF,
    "abort": _BROKE_OFF,
}
"""Reasons of vendors that are no success, lower-cased; any other unknown reason becomes its own upper-cased code."""
_CLOSER = "</think>"
_OPENER = "<think>"

Table = dict[str, Any]


class _Call:
    """A call in the making. `wire_id` is the id the server gave it, "" until it gives one."""

    __slots__ = ("arguments", "id", "index", "name", "slot", "wire_id")

    def __init__(self, index: int, slot: str, wire_id: str, unique_id: str) -> None:
        self.index = index
        self.slot = slot
        self.wire_id = wire_id
        self.id = unique_id
        self.name = ""
        self.arguments: list[str] = []

    @property
    def complete(self) -> bool:
        try:
            json.loads("".join(self.arguments))
        except (ValueError, RecursionError):
            return False
        return True

    def is_followed_by(self, name: str) -> bool:
        """Whether a fragment with this name, and nothing else to tell it apart, starts the next call."""
        return bool(name and self.name) and (self.complete or not name.startswith(self.name))


class ChatDecoder:
    def __init__(self, who: str) -> None:
        self._who = who
        self._blocks = 0
        self._text: int | None = None
        self._text_parts: list[str] = []
        self._reasoning: int | None = None
        self._reasoning_parts: list[str] = []
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_slot: dict[str, _Call] = {}
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._refusal: list[str] = []
        self._model: str | None = None
        self._thinking = _ThinkSplitter()

    @property
    def finished(self) -> bool:
        return bool(self._finish)

    def feed(self, payload: JSON) -> list[Chunk]:
        """The chunks of one event. Raises `LLMError` for an error inside the stream and for what is no object."""
        data = _table(payload)
        if data is None:
            raise LLMError(f"{self._who} sent an event that is no JSON object", "MALFORMED_RESPONSE")
        if (error := in_band(data, who=self._who)) is not None:
            raise error
        if isinstance(model := data.get("model"), str) and model:
            self._model = model
        self._count(data)
        # A second choice was not asked for; some servers send one all the same.
        choice = _table(next(iter(_items(data.get("choices"))), None))
        return [] if choice is None else self._choice(choice)

    def _count(self, holder: Table) -> None:
        if (usage := _table(holder.get("usage"))) is not None:
            self._usage = read_usage(usage)

    def _choice(self, choice: Table) -> list[Chunk]:
        self._count(choice)
        chunks: list[Chunk] = []
        if (delta := _table(choice.get("delta") or choice.get("message"))) is not None:
            self._delta(delta, chunks)
        if isinstance(text := choice.get("text"), str):
            self._add_text(text, chunks)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish = reason.lower()
        return chunks

    def _delta(self, delta: Table, chunks: list[Chunk]) -> None:
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thinking, str) and thinking:
            self._add_reasoning(thinking, chunks)
        for is_thinking, text in _parts(delta.get("content")):
            (self._add_reasoning if is_thinking else self._add_text)(text, chunks)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._refusal.append(refusal)
        calls = delta.get("tool_calls")
        pieces = [piece for item in _items(calls) or [calls] if (piece := _table(item)) is not None]
        if not pieces and (legacy := _table(delta.get("function_call"))) is not None:
            pieces = [{"index": 0, "function": legacy}]
        for piece in pieces:
            self._add_call(piece, chunks)

    def _add_text(self, text: str, chunks: list[Chunk]) -> None:
        for is_thinking, piece in self._thinking.feed(text):
            if is_thinking:
                self._add_reasoning(piece, chunks)
            else:
                self._emit_text(piece, chunks)

    def _emit_text(self, text: str, chunks: list[Chunk]) -> None:
        if self._text is None:
            self._text = self._new_block()
            chunks.append(BlockStart(self._text, "text"))
        self._text_parts.append(text)
        chunks.append(TextDelta(self._text, text))

    def _add_reasoning(self, text: str, chunks: list[Chunk]) -> None:
        if self._reasoning is None:
            self._reasoning = self._new_block()
            chunks.append(BlockStart(self._reasoning, "reasoning"))
        self._reasoning_parts.append(text)
        chunks.append(ReasoningDelta(self._reasoning, text))

    def _add_call(self, piece: Table, chunks: list[Chunk]) -> None:
        fields = _table(piece.get("function")) or piece
        call_id, name = _text(piece.get("id")), _text(fields.get("name"))
        arguments = fields.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        call, is_new = self._route(call_id, _slot(piece.get("index")), name)
        if is_new:
            chunks.append(BlockStart(call.index, "tool-call"))
        # A name arrives once, repeated whole, or (rarely) in growing prefixes; the longest is the name.
        if name.startswith(call.name):
            call.name = name
        call.arguments.append(arguments)
        chunks.append(ToolCallDelta(call.index, call.id, call.name or None, arguments))

    def _route(self, call_id: str, slot: str, name: str) -> tuple[_Call, bool]:
        """The call a fragment belongs to, and whether it is new; ids are stronger than indexes (`slot`, "" = none).

        Servers send all indexes 0, none, from 1, as strings, the id on every fragment, only later, twice, or never.
        """
        bound = self._by_slot.get(slot) if slot else next(reversed(self._calls), None)
        if not call_id:
            if bound is None or bound.is_followed_by(name):
                return self._open_call(call_id, slot), True
            return bound, False
        if slot and bound is not None and bound.wire_id == call_id:
            return bound, False
        known = self._by_id.get(call_id)
        if known is not None:
            if slot and known.slot and slot != known.slot and name and known.complete:
                return self._open_call(call_id, slot), True
            self._by_slot[slot] = known
            return known, False
        if bound is not None and not bound.wire_id and (slot or not name):
            bound.wire_id = bound.id = call_id
            self._by_id[call_id] = bound
            return bound, False
        return self._open_call(call_id, slot), True

    def _open_call(self, call_id: str, slot: str) -> _Call:
        # Minted ids are unique beyond this reply: some servers number from zero in each turn, and histories pair by id.
        unique_id = (
            call_id if call_id and call_id not in self._by_id else f"{call_id or 'call'}-{uuid.uuid4().hex[:12]}"
        )
        call = _Call(self._new_block(), slot, call_id, unique_id)
        self._calls.append(call)
        self._by_id.setdefault(call_id or unique_id, call)
        self._by_slot[slot] = call
        return call

    def _new_block(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def end(self, *, done: bool) -> list[Chunk]:
        """Close the reply: block ends, usage, finish. `done` says that the server marked the end of its stream.

        Raises `STREAM_CLOSED` when nothing proves that the reply is complete, `EMPTY_RESPONSE` when it has no block.
        """
        chunks: list[Chunk] = []
        for is_thinking, piece in self._thinking.flush():
            (self._add_reasoning if is_thinking else self._emit_text)(piece, chunks)
        if not self._finish and not done and not (self._usage and self._blocks):
            raise LLMError(f"{self._who} closed the stream before the reply was complete", "STREAM_CLOSED")
        finish = self._finish_chunk()
        chunks.extend(self._block_ends())
        if self._usage is not None:
            chunks.append(UsageReport(self._usage))
        chunks.append(finish)
        return chunks

    def _finish_chunk(self) -> Finish:
        reason = self._finish or ""
        if reason in FAILED_FINISH or (self._refusal and not self._text_parts and not self._calls):
            code, text = FAILED_FINISH.get(reason, FAILED_FINISH["refusal"])
            words = "".join(self._refusal)
            return self._failed(code, f"{text}: {words}" if words else text)
        if reason and reason not in FINISH:
            return self._failed(reason.upper(), f"{self._who} ended the reply with {reason!r}")
        if FINISH.get(reason) == "max-tokens":
            return Finish("max-tokens", model=self._model)
        if not self._blocks:
            return self._failed("EMPTY_RESPONSE", f"{self._who} sent an empty reply")
        if self._calls:
            if not reason and not all(call.complete for call in self._calls):
                raise LLMError(f"{self._who} closed the stream inside a tool call", "STREAM_CLOSED")
            return Finish("tool-calls", model=self._model, marked=bool(reason))
        return Finish("stop", model=self._model, marked=bool(reason))

    def _failed(self, code: str, text: str) -> Finish:
        return Finish("error", LLMFailure(text, code), model=self._model)

    def _block_ends(self) -> list[Chunk]:
        ends: list[tuple[int, Chunk]] = []
        if self._text is not None:
            ends.append((self._text, BlockEnd(self._text, TextBlock("".join(self._text_parts)))))
        if self._reasoning is not None:
            ends.append((self._reasoning, BlockEnd(self._reasoning, ReasoningBlock("".join(self._reasoning_parts)))))
        for call in self._calls:
            block = ToolCallBlock(call.id, call.name, "".join(call.arguments))
            ends.append((call.index, BlockEnd(call.index, block)))
        return [chunk for _, chunk in sorted(ends, key=lambda pair: pair[0])]

    def complete_body(self, payload: JSON) -> list[Chunk]:
        """The chunks of a whole, unstreamed completion."""
        chunks = self.feed(payload)
        if "choices" not in (_table(payload) or {}):
            raise LLMError(f"{self._who} answered with JSON that is no completion", "ENDPOINT", hint=HINTS["ENDPOINT"])
        return [*chunks, *self.end(done=True)]


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Disjoint counts from a usage object: cached tokens are taken out of the prompt count.

    Cached tokens stand in `prompt_tokens_details.cached_tokens` (OpenAI) or `prompt_cache_hit_tokens` (DeepSeek).
    """
    prompt = _number(usage.get("prompt_tokens"))
    details = _table(usage.get("prompt_tokens_details")) or {}
    cached = _number(details.get("cached_tokens")) or _number(usage.get("prompt_cache_hit_tokens"))
    cached = min(cached, prompt)
    output_details = _table(usage.get("completion_tokens_details")) or {}
    return Usage(
        input_tokens=prompt - cached,
        output_tokens=_number(usage.get("completion_tokens")),
        cache_read_tokens=cached,
        reasoning_tokens=_number(output_details.get("reasoning_tokens")),
    )


def _number(value: JSON) -> int:
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return max(0, value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value) else 0


def _table(value: JSON) -> Table | None:
    return cast("Table", value) if isinstance(value, dict) else None


def _items(value: JSON) -> list[JSON]:
    return cast("list[JSON]", value) if isinstance(value, list) else []


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else ""


def _slot(index: JSON) -> str:
    return str(index) if isinstance(index, int | str) and not isinstance(index, bool) else ""


def _parts(content: JSON) -> Iterator[tuple[bool, str]]:
    """(is thinking, text) of a content that is a text or a list of parts (Mistral's thinking is a part of its own)."""
    if isinstance(content, str) and content:
        yield False, content
    for part in map(_table, _items(content)):
        if part is None:
            continue
        if text := _text(part.get("text")):
            yield False, text
        for thought in map(_table, _items(part.get("thinking"))):
            if thought is not None and (text := _text(thought.get("text"))):
                yield True, text


class _ThinkSplitter:
    """Routes a leading `<think>…</think>` of inline-thinking models to reasoning while the text streams."""

    def __init__(self) -> None:
        self._state: Literal["start", "thinking", "gap", "text"] = "start"
        self._held = ""

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """(is thinking, text) of what can be told by now; the beginning of a tag is held back."""
        self._held += text
        pieces: list[tuple[bool, str]] = []
        if self._state == "start":
            lead = self._held.lstrip()
            if lead.startswith(_OPENER):
                self._state, self._held = "thinking", lead.removeprefix(_OPENER)
            elif not _OPENER.startswith(lead):
                self._state = "text"
        if self._state == "thinking":
            thought, closer, rest = self._held.partition(_CLOSER)
            if closer:
                self._state, self._held = "gap", rest
            else:
                keep = next((n for n in range(len(_CLOSER) - 1, 0, -1) if thought.endswith(_CLOSER[:n])), 0)
                thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
            pieces.append((True, thought))
        if self._state == "gap":
            self._held = self._held.lstrip("\n")
            self._state = "text" if self._held else "gap"
        if self._state == "text":
            pieces.extend(self.flush())
        return [piece for piece in pieces if piece[1]]

    def flush(self) -> list[tuple[bool, str]]:
        held, self._held = self._held, ""
        return [(self._state == "thinking", held)] if held else []

"""Chat completions, incoming: wire objects to chunks, with every oddity of compatible servers. No input or output.

One decoder serves one reply. `feed` takes a parsed stream event (or a whole completion), `end` closes the reply.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, cast

from app.llm.failures import HINTS, in_band
from app.schema.errors import LLMError, LLMFailure
from app.schema.message import ReasoningBlock, TextBlock, ToolCallBlock
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
    "tool_calls": "tool-calls",
    "tool_use": "tool-calls",
    "function_call": "tool-calls",
    "length": "max-tokens",
    "max_tokens": "max-tokens",
}
FAILED_FINISH: dict[str, tuple[str, str]] = {
    "content_filter": ("CONTENT_FILTER", "the provider's content filter stopped the reply"),
    "refusal": ("REFUSED", "the model refused"),
    "model_context_window_exceeded": ("CONTEXT_WINDOW_EXCEEDED", "the context window was full"),
}
_CLOSER = "</think>"
_OPENER = "<think>"


class _Call:
    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int, call_id: str) -> None:
        self.index = index
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []

    @property
    def complete(self) -> bool:
        try:
            json.loads("".join(self.arguments))
        except ValueError:
            return False
        return True


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
        self._by_index: dict[str, _Call] = {}
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._refusal: list[str] = []
        self._model: str | None = None
        self._saw_choice = False
        self._thinking = _ThinkSplitter()

    @property
    def finished(self) -> bool:
        return bool(self._finish)

    def feed(self, payload: object) -> list[Chunk]:
        """The chunks of one event. Raises `LLMError` for an error inside the stream and for what is no object."""
        if not isinstance(payload, dict):
            raise LLMError(f"{self._who} sent an event that is no JSON object", "MALFORMED_RESPONSE")
        data = cast("dict[str, Any]", payload)
        if (error := in_band(data, who=self._who)) is not None:
            raise error
        if isinstance(model := data.get("model"), str) and model:
            self._model = model
        if isinstance(usage := data.get("usage"), dict):
            self._usage = read_usage(cast("dict[str, Any]", usage))
        choices = data.get("choices")
        if not isinstance(choices, list) or not choices:
            return []
        first = cast("list[object]", choices)[0]
        return self._choice(cast("dict[str, Any]", first)) if isinstance(first, dict) else []

    def _choice(self, choice: dict[str, Any]) -> list[Chunk]:
        self._saw_choice = True
        if isinstance(usage := choice.get("usage"), dict):
            self._usage = read_usage(cast("dict[str, Any]", usage))
        delta = choice.get("delta") or choice.get("message") or {}
        chunks: list[Chunk] = []
        if isinstance(delta, dict):
            self._delta(cast("dict[str, Any]", delta), chunks)
        if isinstance(text := choice.get("text"), str):
            self._add_text(text, chunks)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish = reason
        return chunks

    def _delta(self, delta: dict[str, Any], chunks: list[Chunk]) -> None:
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thinking, str) and thinking:
            self._add_reasoning(thinking, chunks)
        content = delta.get("content")
        if content:
            self._add_text(_content_text(content), chunks)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._refusal.append(refusal)
        calls = delta.get("tool_calls")
        if isinstance(calls, dict):
            calls = [calls]
        if isinstance(calls, list):
            for piece in cast("list[object]", calls):
                if isinstance(piece, dict):
                    self._add_call(cast("dict[str, Any]", piece), chunks)
        legacy = delta.get("function_call")
        if isinstance(legacy, dict) and not calls:
            self._add_call({"index": 0, "function": legacy}, chunks)

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

    def _add_call(self, piece: dict[str, Any], chunks: list[Chunk]) -> None:
        function = piece.get("function")
        fields = cast("dict[str, Any]", function) if isinstance(function, dict) else piece
        name = fields.get("name")
        name = name if isinstance(name, str) else ""
        arguments = fields.get("arguments")
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call_id = piece.get("id")
        call, opened = self._route(call_id if isinstance(call_id, str) else "", piece.get("index"), name)
        if opened:
            chunks.append(BlockStart(call.index, "tool-call"))
        # A name arrives once, repeated whole, or (rarely) in growing prefixes; the longest is the name.
        if name and (not call.name or name.startswith(call.name)):
            call.name = name
        call.arguments.append(arguments)
        chunks.append(ToolCallDelta(call.index, call.id, call.name or None, arguments))

    def _route(self, call_id: str, index: object, name: str) -> tuple[_Call, bool]:
        """The call a fragment belongs to, and whether it is new; ids are stronger than indexes.

        Servers send all indexes 0, none, from 1, as strings, the id on every fragment, only later, or never.
        """
        slot = "" if index is None or isinstance(index, bool) else str(index)
        if call_id and call_id in self._by_id:
            call = self._by_id[call_id]
            if slot:
                self._by_index[slot] = call
            return call, False
        bound = self._by_index.get(slot) if slot else (self._calls[-1] if self._calls else None)
        if call_id:
            if bound is not None and bound.id == _minted(bound) and slot:
                self._rename(bound, call_id)
                return bound, False
            return self._open_call(call_id, slot), True
        if bound is None or (name and bound.name and bound.complete):
            return self._open_call("", slot), True
        return bound, False

    def _open_call(self, call_id: str, slot: str) -> _Call:
        call = _Call(self._new_block(), "")
        call.id = call_id or _minted(call)
        self._calls.append(call)
        self._by_id[call.id] = call
        if slot:
            self._by_index[slot] = call
        return call

    def _rename(self, call: _Call, call_id: str) -> None:
        self._by_id.pop(call.id, None)
        call.id = call_id
        self._by_id[call_id] = call

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

    def complete_body(self, payload: object) -> list[Chunk]:
        """The chunks of a whole, unstreamed completion."""
        chunks = self.feed(payload)
        if not self._saw_choice and not (isinstance(payload, dict) and "choices" in payload):
            raise LLMError(f"{self._who} answered with JSON that is no completion", "ENDPOINT", hint=HINTS["ENDPOINT"])
        return [*chunks, *self.end(done=True)]


def _minted(call: _Call) -> str:
    # Unique beyond this reply: some servers number from zero in each turn, and histories pair by id.
    return call.id if call.id.startswith("call-x") else f"call-x{uuid.uuid4().hex[:12]}"


def _content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [cast("dict[str, Any]", part).get("text") for part in cast("list[object]", content) if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return str(content)


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Disjoint counts from a usage object: cached tokens are taken out of the prompt count.

    Cached tokens stand in `prompt_tokens_details.cached_tokens` (OpenAI) or `prompt_cache_hit_tokens` (DeepSeek).
    """
    prompt_details = usage.get("prompt_tokens_details") or {}
    output_details = usage.get("completion_tokens_details") or {}
    prompt = _count(usage.get("prompt_tokens"))
    cached = _count(prompt_details.get("cached_tokens")) or _count(usage.get("prompt_cache_hit_tokens"))
    cached = min(cached, prompt)
    return Usage(
        input_tokens=prompt - cached,
        output_tokens=_count(usage.get("completion_tokens")),
        cache_read_tokens=cached,
        reasoning_tokens=_count(output_details.get("reasoning_tokens")),
    )


def _count(value: object) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int | float):
        return max(0, int(value))
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0


class _ThinkSplitter:
    """Routes a leading `<think>…</think>` of inline-thinking models to reasoning while the text streams."""

    def __init__(self) -> None:
        self._state = "start"
        self._held = ""

    def feed(self, text: str) -> list[tuple[bool, str]]:
        if self._state == "text":
            return [(False, text)]
        self._held += text
        if self._state == "start":
            lead = self._held.lstrip()
            if _OPENER.startswith(lead[: len(_OPENER)]) and len(lead) < len(_OPENER):
                return []
            if not lead.startswith(_OPENER):
                self._state = "text"
                return self._release(thinking=False)
            self._state, self._held = "thinking", lead[len(_OPENER) :]
        head, closer, rest = self._held.partition(_CLOSER)
        if closer:
            self._state, self._held = "text", ""
            rest = rest.lstrip("\n")
            return [pair for pair in ((True, head), (False, rest)) if pair[1]]
        keep = next((n for n in range(len(_CLOSER) - 1, 0, -1) if self._held.endswith(_CLOSER[:n])), 0)
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return [(True, ready)] if ready else []

    def flush(self) -> list[tuple[bool, str]]:
        return self._release(thinking=self._state == "thinking")

    def _release(self, *, thinking: bool) -> list[tuple[bool, str]]:
        held, self._held = self._held, ""
        return [(thinking, held)] if held else []

"""Helpers of the model-layer tests: requests in few words, and chunks in a notation that fits into a table."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from app.llm.adapters.base import LLMAdapter
from app.schema.event import EventRecord, Notice
from app.schema.message import (
    Message,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    user_message,
)
from app.schema.request import CallConfig, ModelRequest, ToolSpec
from app.schema.stream import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    check_stream,
)

MODEL = "test-model"
BASH = ToolSpec(
    "bash",
    "Run a command.",
    {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
READ = ToolSpec("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def ask(*messages: Message | str, **fields: Any) -> ModelRequest:
    """A request of these messages; `model`, `temperature` and the like go into its config."""
    options = {name: fields.pop(name) for name in tuple(fields) if name in CallConfig.__dataclass_fields__}
    config = CallConfig(options.pop("provider", "main"), options.pop("model", MODEL), **options)
    asked = tuple(user_message(each) if isinstance(each, str) else each for each in messages or ("hi",))
    return ModelRequest(config, asked, **fields)


async def chunks_of(adapter: LLMAdapter, request: ModelRequest, seen: list[Chunk] | None = None) -> list[Chunk]:
    """All chunks of a reply, each checked against the grammar; `seen` keeps what came before an error."""
    seen = [] if seen is None else seen
    async for chunk in check_stream(adapter.stream(request)):
        seen.append(chunk)
    return seen


async def iterate(chunks: Iterable[Chunk]) -> AsyncIterator[Chunk]:
    for chunk in chunks:
        yield chunk


def short(chunk: Chunk) -> str:
    """`S0 text`, `T0 Hel`, `R0 hm`, `C0 id name {args`, `E0 Hello`, `U 27 256 10 4`, `F stop`, `F error CODE`."""
    match chunk:
        case BlockStart(index, kind):
            return f"S{index} {kind}"
        case TextDelta(index, text):
            return f"T{index} {text}"
        case ReasoningDelta(index, text):
            return f"R{index} {text}"
        case ToolCallDelta(index, call_id, name, arguments):
            return f"C{index} {call_id} {name} {arguments}"
        case BlockEnd(index, TextBlock(text) | ReasoningBlock(text)):
            return f"E{index} {text}"
        case BlockEnd(index, ToolCallBlock(call_id, name, arguments)):
            return f"E{index} {call_id} {name} {arguments}"
        case BlockEnd(index, OpaqueBlock(kind)):
            return f"E{index} {kind}"
        case UsageReport(usage):
            return f"U {usage.input_tokens} {usage.cache_read_tokens} {usage.output_tokens} {usage.reasoning_tokens}"
        case Finish(reason, failure):
            return f"F {reason}" if failure is None else f"F {reason} {failure.code}"
        case _:
            raise AssertionError(chunk)


def shorts(chunks: Iterable[Chunk]) -> list[str]:
    return [short(chunk) for chunk in chunks]


def calls_of(chunks: Iterable[Chunk]) -> list[tuple[str, Any]]:
    """(name, parsed arguments) of the closed calls."""
    blocks = [chunk.block for chunk in chunks if isinstance(chunk, BlockEnd)]
    return [(block.name, json.loads(block.arguments)) for block in blocks if isinstance(block, ToolCallBlock)]


def ids_of(chunks: Iterable[Chunk]) -> list[str]:
    blocks = [chunk.block for chunk in chunks if isinstance(chunk, BlockEnd)]
    return [block.id for block in blocks if isinstance(block, ToolCallBlock)]


def codes(events: Iterable[EventRecord]) -> list[str]:
    """The codes of the notices among these events."""
    return [record.event.code for record in events if isinstance(record.event, Notice)]

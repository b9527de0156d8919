"""Anthropic Messages, outgoing: messages become content blocks, each encoded once; blocks of one role in a row share a
turn, results first. A body is head + joined turns + tail, as in `chat_encode.py`.

Wire facts: Anthropic API reference ("Messages"), its guides on tool use, extended and adaptive thinking, caching.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from app.llm.adapters.chat_encode import NO_OUTPUT, in_words
from app.llm.adapters.corrections import Learned
from app.llm.adapters.wire import arguments_table, dumps, legal_id
from app.llm.models import ModelFacts
from app.llm.tool_schemas import fitted, wire_name
from app.schema.message import (
    Block,
    ImageBlock,
    Message,
    ModelSource,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from app.schema.request import ModelRequest, ToolSpec

EFFORTS = ("off", "none", "minimal", "low", "medium", "high", "xhigh", "max")
BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_000, "max": 48_000}
"""Thinking tokens of an effort for models that count instead of adapting; the API's least is 1,024."""
MOST_OUTPUT_TOKENS = 32_000
"""The API demands `max_tokens`; a larger one than needed eats into the window, for which input and output count."""
UNKNOWN_OUTPUT_TOKENS = 8192
EPHEMERAL = {"type": "ephemeral"}
_GENERATION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)", re.ASCII)
_DATED = re.compile(r"(?:[-@](?:\d{8}|latest|default))?(?:-v\d+(?::\d+)?)?$", re.ASCII)
"""What a server adds to the name of a model that was asked for without its date."""

Part = dict[str, Any]
_Group = tuple[str, bytes]
"""(role, blocks by comma)"""


class MessagesEncoder:
    """`route` decides which thinking goes back: its own, to the model that thought it."""

    def __init__(self, route: str) -> None:
        self._route = route

    def body(self, request: ModelRequest, learned: Learned, facts: ModelFacts) -> bytes:
        """The request's JSON bytes; always a streaming request."""
        limit = request.config.max_tokens or min(facts.max_output_tokens or UNKNOWN_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS)
        thinking = self._thinking(request, learned, limit)
        if thinking.get("type") in ("enabled", "adaptive") and request.tool_choice == "required":
            # A model that thinks cannot be forced to call; it is asked in words.
            learned = replace(learned, dropped=learned.dropped | {"tool_choice"})
        turns = b",".join(self._turns(request, learned))
        return _head(request, learned) + turns + _tail(request, learned, facts, limit, thinking)

    def _turns(self, request: ModelRequest, learned: Learned) -> Iterator[bytes]:
        for role, blocks in groupby(self._blocks(request, learned), key=lambda group: group[0]):
            yield b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(block for _, block in blocks))

    def _blocks(self, request: ModelRequest, learned: Learned) -> Iterator[_Group]:
        if request.system and "system" in learned.dropped:
            yield "user", dumps({"type": "text", "text": request.system})
        model = request.config.model
        key = f"messages:{self._route}:{model}"
        waiting: list[bytes] = []
        for message in request.messages:
            encoded: tuple[bytes, bytes] | None = message.wire.get(key)
            if encoded is None:
                encoded = message.wire[key] = self._message(message, model)
            blocks, after = encoded
            if waiting and not message.tool_results:
                yield from (("user", block) for block in waiting)
                waiting.clear()
            if blocks:
                yield message.role if message.role == "assistant" else "user", blocks
            if after:
                waiting.append(after)
        yield from (("user", block) for block in waiting)
        if words := in_words(request, learned):
            yield "user", dumps({"type": "text", "text": words})

    def _message(self, message: Message, model: str) -> tuple[bytes, bytes]:
        """(blocks, blocks that must wait until all results of the turn are out)"""
        if message.role == "assistant":
            return _joined(self._assistant(message, model)), b""
        results = [_result(result) for result in message.tool_results]
        rest = _joined(_user(message.content))
        return (_joined(results), rest) if results else (rest, b"")

    def _assistant(self, message: Message, model: str) -> Iterator[Part]:
        thought_here = self._thought_here(message, model)
        for block in message.content:
            match block:
                case TextBlock() if block.text.strip():
                    yield {"type": "text", "text": block.text.rstrip()}
                case ToolCallBlock():
                    given = arguments_table(block.arguments) or {}
                    yield {"type": "tool_use", "id": legal_id(block.id), "name": wire_name(block.name), "input": given}
                case ReasoningBlock() if thought_here and block.signature:
                    yield {"type": "thinking", "thinking": block.text, "signature": block.signature}
                case OpaqueBlock("redacted_thinking") if thought_here:
                    kept = json.loads(block.raw)
                    yield {"type": "redacted_thinking", "data": kept.get("data", "")}
                case _:
                    continue

    def _thought_here(self, message: Message, model: str) -> bool:
        """Whether the thinking of this message may go back: this account's, of this model (perhaps with a date)."""
        source = message.source
        if not isinstance(source, ModelSource) or source.provider != self._route:
            return False
        return bool(source.model) and _DATED.sub("", source.model) == _DATED.sub("", model)

    def _thinking(self, request: ModelRequest, learned: Learned, limit: int) -> dict[str, Any]:
        effort, model = request.config.reasoning_effort, request.config.model
        if effort is None or "reasoning_effort" in learned.dropped:
            return {}
        if effort in ("off", "none"):
            return {"type": "disabled"}
        if _generation(model) >= (4, 6):
            return {"type": "adaptive"}
        # The last turn must begin with its thinking; one that another model began cannot.
        last = next((each for each in reversed(request.messages) if each.role == "assistant"), None)
        in_calls = bool(request.messages and request.messages[-1].tool_results)
        if last is not None and in_calls and not self._begins_with_thinking(last, model):
            return {}
        # Thinking counts into the limit of the output: a quarter stays for the answer.
        budget = min(BUDGETS[effort], limit * 3 // 4)
        return {"type": "enabled", "budget_tokens": budget} if budget >= BUDGETS["minimal"] else {}

    def _begins_with_thinking(self, message: Message, model: str) -> bool:
        first = next(self._assistant(message, model), None)
        return first is not None and first["type"] in ("thinking", "redacted_thinking")


def _generation(model: str) -> tuple[int, int]:
    """(4, 6) of `claude-opus-4-6`, (3, 7) of `claude-3-7-sonnet`; (0, 0) for models of others."""
    found = _GENERATION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _head(request: ModelRequest, learned: Learned) -> bytes:
    caches = "cache" not in learned.dropped
    head = b'{"model":' + dumps(request.config.model) + b',"stream":true'
    if request.tools:
        head += b',"tools":[' + b",".join(map(_tool, request.tools)) + b"]"
    if request.system and "system" not in learned.dropped:
        block = {"type": "text", "text": request.system} | ({"cache_control": EPHEMERAL} if caches else {})
        head += b',"system":[' + dumps(block) + b"]"
    return head + b',"messages":['


def _tail(request: ModelRequest, learned: Learned, facts: ModelFacts, limit: int, thinking: dict[str, Any]) -> bytes:
    config = request.config
    options: dict[str, Any] = {"max_tokens": limit}
    if choice := _tool_choice(request, learned, facts):
        options["tool_choice"] = choice
    if thinking:
        options["thinking"] = thinking
    thinks = thinking.get("type") in ("enabled", "adaptive")
    if config.temperature is not None and facts.temperature and not thinks and "temperature" not in learned.dropped:
        options["temperature"] = config.temperature
    if config.stop and "stop" not in learned.dropped:
        options["stop_sequences"] = list(config.stop)
    if output := _output(request, learned, adaptive=thinking.get("type") == "adaptive"):
        options["output_config"] = output
    if "cache" not in learned.dropped:
        # The marker of the moving end stands outside the messages, so that their bytes never change.
        options["cache_control"] = EPHEMERAL
    return b"]," + dumps(options)[1:]


def _tool_choice(request: ModelRequest, learned: Learned, facts: ModelFacts) -> dict[str, Any]:
    if not request.tools:
        return {}
    one_call = facts.parallel_tools is False
    if "tool_choice" in learned.dropped or request.tool_choice == "auto":
        return {"type": "auto", "disable_parallel_tool_use": True} if one_call else {}
    if request.tool_choice == "none":
        return {"type": "none"}
    return {"type": "any"} | ({"disable_parallel_tool_use": True} if one_call else {})


def _output(request: ModelRequest, learned: Learned, *, adaptive: bool) -> dict[str, Any]:
    output: dict[str, Any] = {}
    effort = request.config.reasoning_effort
    if adaptive and effort is not None:
        output["effort"] = "low" if effort == "minimal" else effort
    if request.response_schema is not None and "response_format" not in learned.dropped:
        output["format"] = {"type": "json_schema", "schema": request.response_schema}
    return output


def _joined(parts: Iterable[Part]) -> bytes:
    return b",".join(map(dumps, parts))


def _user(content: Iterable[Block]) -> Iterator[Part]:
    for block in content:
        match block:
            case TextBlock() if block.text.strip():
                yield {"type": "text", "text": block.text}
            case ImageBlock():
                source = {"type": "base64", "media_type": block.media_type, "data": block.data}
                yield {"type": "image", "source": source}
            case _:
                continue


def _result(result: ToolResultBlock) -> Part:
    content = list(_user(result.content)) or [{"type": "text", "text": NO_OUTPUT}]
    part = {"type": "tool_result", "tool_use_id": legal_id(result.call_id), "content": content}
    return part | ({"is_error": True} if result.is_error else {})


def _tool(spec: ToolSpec) -> bytes:
    known = spec.wire.get("messages")
    if known is None:
        fit = fitted(spec, "messages")
        tool = {"name": fit.name, "description": fit.description, "input_schema": fit.parameters}
        known = spec.wire["messages"] = dumps(tool)
    return known

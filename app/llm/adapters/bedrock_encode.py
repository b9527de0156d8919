"""Amazon Bedrock Converse, outgoing: each message becomes content blocks once, kept beside its value.

Converse wants turns: user and assistant alternate, a user begins, results of a turn's calls open the next one. So the
blocks of neighbours with one role are joined into a turn when a body is put together.
Wire facts: Amazon Bedrock API reference, "Converse"; the service model of botocore.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from app.llm.adapters.chat_encode import NO_OUTPUT, in_words
from app.llm.adapters.corrections import Learned
from app.llm.adapters.wire import arguments_table, dumps, legal_id
from app.llm.models import ModelFacts
from app.llm.tool_schemas import fitted, wire_name
from app.schema.message import (
    JSON,
    Block,
    ImageBlock,
    Message,
    ModelSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    thaw_json,
)
from app.schema.request import ModelRequest, ToolSpec

EFFORTS = ("off", "none", "low", "medium", "high", "xhigh", "max")
CACHE_POINT = b'{"cachePoint":{"type":"default"}}'
OPENER = "(The conversation goes on.)"
"""Stands in front of a history that begins with an answer; Converse wants a user's turn first."""
_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 32_000}
_ANSWER_TOKENS = 8_192
"""Room for the answer beside a thinking budget when nobody named an output limit."""
_RICH = re.compile(r"claude|nova")
"""Models whose tool results may hold images and a status."""
_CACHES = re.compile(r"claude-(?!3-(?:opus|sonnet|haiku)|v\d|instant|3-5-sonnet-20240620)|nova")
_CACHES_TOOLS = re.compile(r"claude")
_BUDGET_THINKERS = re.compile(r"claude-(?:3-7|(?:sonnet|opus|haiku)-4(?:-[015])?(?:-\d{8}|-v|$))")
"""Models that take thinking as a number of tokens; later ones take an effort."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A message's blocks: its own, and those that must wait until all results of a turn are out."""

    role: bytes
    body: bytes
    after: bytes
    is_result: bool


class ConverseEncoder:
    """Encodes requests for one account. `origin` is its address or region: signed thinking goes nowhere else."""

    def __init__(self, origin: str) -> None:
        self._origin = origin

    def body(self, request: ModelRequest, learned: Learned, facts: ModelFacts) -> bytes:
        caches = bool(_CACHES.search(request.config.model)) and "cache" not in learned.dropped
        turns = self._turns(request, learned, caches=caches)
        return b'{"messages":[' + turns + b"]" + self._rest(request, learned, facts, caches=caches) + b"}"

    def _turns(self, request: ModelRequest, learned: Learned, *, caches: bool) -> bytes:
        turns: list[bytes] = []
        role, blocks = b"", list[bytes]()
        for each, block in self._blocks(request, learned):
            if each != role:
                turns += _turn(role, blocks)
                role, blocks = each, []
            blocks.append(block)
        # The mark moves with the end of the conversation; what stands before it is what the cache is asked for.
        if caches and role == b"user":
            blocks.append(CACHE_POINT)
        return b",".join([*turns, *_turn(role, blocks)])

    def _blocks(self, request: ModelRequest, learned: Learned) -> Iterator[tuple[bytes, bytes]]:
        """(role, joined blocks), never empty, a user's first."""
        key = f"converse:{self._origin}:{request.config.model}"
        if request.system and "system" in learned.dropped:
            yield b"user", _text(request.system)
        elif request.messages and request.messages[0].role == "assistant":
            yield b"user", _text(OPENER)
        waiting: list[bytes] = []
        for message in request.messages:
            encoded: _Encoded | None = message.wire.get(key)
            if encoded is None:
                encoded = message.wire[key] = self._message(message, request.config.model)
            if waiting and not encoded.is_result:
                yield from ((b"user", block) for block in waiting)
                waiting.clear()
            if encoded.body:
                yield encoded.role, encoded.body
            if encoded.after:
                waiting.append(encoded.after)
        yield from ((b"user", block) for block in waiting)
        words = in_words(request, learned)
        if request.tools and request.tool_choice == "none":
            words = f"{words}\nAnswer in words; call no tool now.".strip()
        if words:
            yield b"user", _text(words)

    def _message(self, message: Message, model: str) -> _Encoded:
        if message.tool_results:
            return _results(message, rich=bool(_RICH.search(model)))
        if message.role == "assistant":
            blocks = _assistant(message.content, self._kept(message, model))
            return _Encoded(b"assistant", b",".join(map(dumps, blocks)), b"", is_result=False)
        return _Encoded(b"user", b",".join(map(dumps, _user(message.content))), b"", is_result=False)

    def _kept(self, message: Message, model: str) -> tuple[JSON, ...]:
        """The signed thinking of this message by block, or nothing when another account or model signed it."""
        state = message.source.replay_state if isinstance(message.source, ModelSource) else None
        if not isinstance(state, Mapping):
            return ()
        table = cast("Mapping[str, JSON]", state)
        blocks = table.get("blocks")
        if (table.get("converse"), table.get("model")) != (self._origin, model) or not isinstance(blocks, list | tuple):
            return ()
        kept = tuple(cast("Iterable[JSON]", blocks))
        return kept if len(kept) == len(message.content) else ()

    def _is_unsigned_turn(self, request: ModelRequest) -> bool:
        """Whether a turn of calls is going on that another model, or no thought, began: Claude then may not think."""
        if "claude" not in request.config.model:
            return False
        for message in reversed(request.messages):
            if message.role == "assistant":
                return bool(message.tool_calls) and not any(self._kept(message, request.config.model))
            if not message.tool_results:
                return False
        return False

    def _rest(self, request: ModelRequest, learned: Learned, facts: ModelFacts, *, caches: bool) -> bytes:
        config = request.config
        rest = b""
        if request.system and "system" not in learned.dropped:
            mark = b"," + CACHE_POINT if caches else b""
            rest += b',"system":[' + _text(request.system) + mark + b"]"
        rest += _tool_config(request, learned, caches=caches and bool(_CACHES_TOOLS.search(config.model)))
        effort = None if self._is_unsigned_turn(request) else config.reasoning_effort
        options, limit = _thinking(config.model, effort, config.max_tokens, learned)
        inference: dict[str, Any] = {}
        if limit is not None:
            inference["maxTokens"] = limit
        thinks = "additionalModelRequestFields" in options
        if config.temperature is not None and facts.temperature and not thinks and "temperature" not in learned.dropped:
            inference["temperature"] = min(config.temperature, 1.0)
        if config.stop and "stop" not in learned.dropped:
            inference["stopSequences"] = list(config.stop)
        if inference:
            options["inferenceConfig"] = inference
        if request.response_schema is not None and "response_format" not in learned.dropped:
            schema = {"name": "reply", "schema": json.dumps(request.response_schema, ensure_ascii=False)}
            form = {"type": "json_schema", "structure": {"jsonSchema": schema}}
            options["outputConfig"] = options.get("outputConfig", {}) | {"textFormat": form}
        return rest + (b"," + dumps(options)[1:-1] if options else b"")


def _turn(role: bytes, blocks: list[bytes]) -> list[bytes]:
    return [b'{"role":"' + role + b'","content":[' + b",".join(blocks) + b"]}"] if blocks else []


def _text(text: str) -> bytes:
    return dumps({"text": text})


def _user(content: Iterable[Block]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for block in content:
        match block:
            case TextBlock() if block.text.strip():
                blocks.append({"text": block.text})
            case ImageBlock():
                kind = block.media_type.removeprefix("image/").replace("jpg", "jpeg")
                blocks.append({"image": {"format": kind, "source": {"bytes": block.data}}})
            case _:
                continue
    return blocks


def _assistant(content: tuple[Block, ...], kept: tuple[JSON, ...]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for block, beside in zip(content, kept or (None,) * len(content), strict=True):
        match block:
            case TextBlock() if block.text.strip():
                blocks.append({"text": block.text})
            case ToolCallBlock():
                call = {
                    "toolUseId": legal_id(block.id),
                    "name": wire_name(block.name),
                    "input": _input(block.arguments),
                }
                blocks.append({"toolUse": call})
            case ReasoningBlock() if beside is not None:
                blocks.append({"reasoningContent": thaw_json(beside)})
            case _:
                continue
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    return arguments_table(arguments) or {}


def _results(message: Message, *, rich: bool) -> _Encoded:
    blocks: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    for result in message.tool_results:
        images = [block for block in result.content if isinstance(block, ImageBlock)]
        content = _user(result.content) if rich else _user([TextBlock(result.text)])
        if not content:
            content = [{"text": "(see the image below)" if images else NO_OUTPUT}]
        if images and not rich:
            after += _user((TextBlock(f"Image of the tool result {result.call_id}:"), *images))
        status = {"status": "error"} if rich and result.is_error else {}
        blocks.append({"toolResult": {"toolUseId": legal_id(result.call_id), "content": content, **status}})
    after += _user(block for block in message.content if not isinstance(block, ToolResultBlock))
    return _Encoded(b"user", b",".join(map(dumps, blocks)), b",".join(map(dumps, after)), is_result=True)


def _tool_config(request: ModelRequest, learned: Learned, *, caches: bool) -> bytes:
    """Tools must be described whenever the history holds calls, also when none is on offer any more."""
    tools = [_tool(spec) for spec in request.tools] or [dumps(_stub(name)) for name in _called(request.messages)]
    if request.tools and request.tool_choice == "none" and not any(_called(request.messages)):
        tools = []
    if not tools:
        return b""
    if caches:
        tools.append(CACHE_POINT)
    forced = request.tools and request.tool_choice == "required" and "tool_choice" not in learned.dropped
    choice = b',"toolChoice":{"any":{}}' if forced else b""
    return b',"toolConfig":{"tools":[' + b",".join(tools) + b"]" + choice + b"}"


def _called(messages: Iterable[Message]) -> Iterable[str]:
    return dict.fromkeys(wire_name(call.name) for message in messages for call in message.tool_calls)


def _stub(name: str) -> dict[str, Any]:
    return {"toolSpec": {"name": name, "inputSchema": {"json": {"type": "object"}}}}


def _tool(spec: ToolSpec) -> bytes:
    known = spec.wire.get("converse")
    if known is None:
        fit = fitted(spec, "converse")
        described = {"description": fit.description} if fit.description.strip() else {}
        tool = {"name": fit.name, **described, "inputSchema": {"json": fit.parameters}}
        known = spec.wire["converse"] = dumps({"toolSpec": tool})
    return known


def _thinking(
    model: str, effort: str | None, max_tokens: int | None, learned: Learned
) -> tuple[dict[str, Any], int | None]:
    """(options, output limit) of a reasoning effort, by what the model's maker wants.

    Sources: Bedrock user guide, "Extended thinking" and "Adaptive thinking"; Amazon Nova user guide, "Extended
    thinking"; OpenAI models on Bedrock.
    """
    if effort in (None, "off", "none") or "reasoning_effort" in learned.dropped:
        return {}, max_tokens
    if _BUDGET_THINKERS.search(model):
        budget = _BUDGETS[effort]
        limit = max(max_tokens, 1_024 + 1) if max_tokens else budget + _ANSWER_TOKENS
        thinking = {"type": "enabled", "budget_tokens": max(1_024, min(budget, limit - 1))}
        return {"additionalModelRequestFields": {"thinking": thinking}}, limit
    if "nova" in model:
        nova = {"type": "enabled", "maxReasoningEffort": "high" if effort in ("xhigh", "max") else effort}
        return {"additionalModelRequestFields": {"reasoningConfig": nova}}, max_tokens
    if "openai" in model or "gpt-oss" in model:
        return {"additionalModelRequestFields": {"reasoning_effort": effort}}, max_tokens
    options: dict[str, Any] = {"outputConfig": {"effort": effort}}
    if "claude" in model:
        options["additionalModelRequestFields"] = {"thinking": {"type": "adaptive"}}
    return options, max_tokens

"""Gemini's own dialect, outgoing: messages become parts, each encoded once; parts of one role in a row share a content.

A body is `{"systemInstruction", "tools", "contents", …}`: what never changes stands first, what may vary last, so that
one request is a byte prefix of the next up to its tail. Wire facts: Gemini API reference, `models.generateContent`,
and its guides on function calling, thinking and thought signatures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, cast

from app.llm.adapters.chat_encode import NO_OUTPUT, in_words
from app.llm.adapters.corrections import Learned
from app.llm.adapters.wire import arguments_table, dumps
from app.llm.models import ModelFacts
from app.llm.tool_schemas import fitted, wire_name
from app.schema.message import (
    JSON,
    Block,
    ImageBlock,
    Message,
    ModelSource,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from app.schema.request import ModelRequest, ToolSpec

EFFORTS = ("off", "none", "minimal", "low", "medium", "high")
BUDGETS = {"off": 0, "none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24_576}
"""Thinking tokens of an effort for the generation 2.5, which counts instead of having levels."""
LEAST_BUDGET_OF_PRO = 128
"""Tokens; `gemini-2.5-pro` cannot be kept from thinking."""
LEVELS = {"off": "minimal", "none": "minimal"}
"""From generation 3 on thinking cannot be switched off; its least level is the nearest (`low` for the pro models)."""
STAND_IN = "skip_thought_signature_validator"
"""What Google documents for calls that another model made: generation 3 refuses an unsigned call of its own turn."""
_SIGNING = re.compile(r"gemini-(?:[3-9]|\d{2}|\w+(?:-lite)?-latest)", re.ASCII)

Part = dict[str, Any]
_Group = tuple[str, bytes]
"""(kind of content, parts by comma)"""


class GeminiEncoder:
    """`origin` is the account's address: signatures and ids go back nowhere else."""

    def __init__(self, origin: str) -> None:
        self._origin = origin

    def body(self, request: ModelRequest, learned: Learned, facts: ModelFacts) -> bytes:
        head = b"{"
        if request.system and "system" not in learned.dropped:
            head += b'"systemInstruction":' + dumps({"parts": [{"text": request.system}]}) + b","
        if request.tools:
            head += b'"tools":[{"functionDeclarations":[' + b",".join(map(_tool, request.tools)) + b"]}],"
        contents = b",".join(self._contents(request, learned))
        return head + b'"contents":[' + contents + b"]" + _tail(request, learned, facts)

    def _contents(self, request: ModelRequest, learned: Learned) -> Iterator[bytes]:
        for kind, parts in groupby(self._parts(request, learned), key=lambda group: group[0]):
            role = "model" if kind == "model" else "user"
            yield b'{"role":"%b","parts":[%b]}' % (role.encode(), b",".join(part for _, part in parts))

    def _parts(self, request: ModelRequest, learned: Learned) -> Iterator[_Group]:
        """Results are a content of their own: their number must be that of the calls before them."""
        if request.system and "system" in learned.dropped:
            yield "user", dumps({"text": request.system})
        signs = _SIGNING.search(request.config.model) is not None
        names: dict[str, str] = {}
        waiting: list[bytes] = []
        for message in request.messages:
            names.update((call.id, wire_name(call.name)) for call in message.tool_calls)
            key = f"gemini:{self._origin}:{signs}"
            groups: tuple[_Group, ...] | None = message.wire.get(key)
            if groups is None:
                groups = message.wire[key] = tuple(self._message(message, names, signs=signs))
            if waiting and not message.tool_results:
                yield from (("user", part) for part in waiting)
                waiting.clear()
            for kind, part in groups:
                if kind == "waiting":
                    waiting.append(part)
                else:
                    yield kind, part
        yield from (("user", part) for part in waiting)
        if words := in_words(request, learned):
            yield "user", dumps({"text": words})

    def _message(self, message: Message, names: Mapping[str, str], *, signs: bool) -> Iterator[_Group]:
        if message.role == "assistant":
            if parts := list(self._assistant(message, signs=signs)):
                yield "model", b",".join(map(dumps, parts))
            return
        if not message.tool_results:
            if parts := list(_user(message.content)):
                yield "user", b",".join(map(dumps, parts))
            return
        after: list[Part] = []
        for result in message.tool_results:
            yield "results", dumps(_result(result, names.get(result.call_id, "tool")))
            if images := [block for block in result.content if isinstance(block, ImageBlock)]:
                after.extend(_user((TextBlock(f"Image of the tool result {result.call_id}:"), *images)))
        after.extend(_user(message.content))
        if after:
            yield "waiting", b",".join(map(dumps, after))

    def _assistant(self, message: Message, *, signs: bool) -> Iterator[Part]:
        unsigned = signs
        for block, beside in zip(message.content, self._kept(message), strict=True):
            signature = {"thoughtSignature": beside} if beside else {}
            match block:
                case TextBlock() if block.text or signature:
                    yield {"text": block.text, **signature}
                case ToolCallBlock():
                    if unsigned and not signature:
                        signature = {"thoughtSignature": STAND_IN}
                    unsigned = False
                    call = {"id": block.id, "name": wire_name(block.name)}
                    given = arguments_table(block.arguments) or {}
                    yield {"functionCall": {**call, "args": given}, **signature}
                case _:
                    continue

    def _kept(self, message: Message) -> tuple[JSON, ...]:
        """The signature beside each block, None for each when they are not this account's."""
        nothing = (None,) * len(message.content)
        state = message.source.replay_state if isinstance(message.source, ModelSource) else None
        if not isinstance(state, Mapping):
            return nothing
        table = cast("Mapping[str, JSON]", state)
        blocks = table.get("blocks")
        if table.get("gemini") != self._origin or not isinstance(blocks, list | tuple):
            return nothing
        kept = tuple(cast("Iterable[JSON]", blocks))
        return kept if len(kept) == len(nothing) else nothing


def _tail(request: ModelRequest, learned: Learned, facts: ModelFacts) -> bytes:
    options: dict[str, Any] = {}
    if request.tools and request.tool_choice != "auto" and "tool_choice" not in learned.dropped:
        mode = "ANY" if request.tool_choice == "required" else "NONE"
        options["toolConfig"] = {"functionCallingConfig": {"mode": mode}}
    if generation := _generation(request, learned, facts):
        options["generationConfig"] = generation
    return b"," + dumps(options)[1:] if options else b"}"


def _generation(request: ModelRequest, learned: Learned, facts: ModelFacts) -> dict[str, Any]:
    config = request.config
    options: dict[str, Any] = {}
    if config.max_tokens is not None:
        options["maxOutputTokens"] = config.max_tokens
    if config.temperature is not None and facts.temperature and "temperature" not in learned.dropped:
        options["temperature"] = config.temperature
    if config.stop and "stop" not in learned.dropped:
        options["stopSequences"] = list(config.stop)
    if request.response_schema is not None and "response_format" not in learned.dropped:
        options["responseMimeType"] = "application/json"
        options["responseJsonSchema"] = request.response_schema
    thinking = _thinking(config.model, config.reasoning_effort, facts)
    if thinking and "reasoning_effort" not in learned.dropped:
        options["thinkingConfig"] = thinking
    return options


def _thinking(model: str, effort: str | None, facts: ModelFacts) -> dict[str, Any]:
    shown = {"includeThoughts": True} if facts.reasoning else {}
    if effort is None:
        return shown
    is_pro = "-pro" in model
    if _SIGNING.search(model):
        level = LEVELS.get(effort, effort)
        return shown | {"thinkingLevel": "low" if is_pro and level == "minimal" else level}
    return shown | {"thinkingBudget": max(BUDGETS[effort], LEAST_BUDGET_OF_PRO if is_pro else 0)}


def _user(content: Iterable[Block]) -> Iterator[Part]:
    for block in content:
        match block:
            case TextBlock() if block.text:
                yield {"text": block.text}
            case ImageBlock():
                yield {"inlineData": {"mimeType": block.media_type, "data": block.data}}
            case _:
                continue


def _result(result: ToolResultBlock, name: str) -> Part:
    """A response is an object; `output` and `error` are the keys that Google documents."""
    has_images = any(isinstance(block, ImageBlock) for block in result.content)
    text = result.text or ("(see the image below)" if has_images else NO_OUTPUT)
    response = {"error" if result.is_error else "output": text}
    return {"functionResponse": {"id": result.call_id, "name": name, "response": response}}


def _tool(spec: ToolSpec) -> bytes:
    known = spec.wire.get("gemini")
    if known is None:
        tool = fitted(spec, "gemini")
        function: dict[str, Any] = {"name": tool.name, "description": tool.description}
        # An object without properties is refused; a function without parameters describes none.
        if tool.parameters.get("properties"):
            function["parametersJsonSchema"] = tool.parameters
        known = spec.wire["gemini"] = dumps(function)
    return known

"""Chat completions, outgoing: messages and tools to wire bytes, each encoded once and kept beside its value.

A body is head + joined message bytes + tail. The head (model, tools) and the messages never change from one request to
the next, so a request is a byte prefix of its successor up to the tail, which holds everything that may vary.
Wire facts: OpenAI API reference, "Create chat completion".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from app.llm.adapters.accounts import EffortStyle, Quirks
from app.llm.adapters.corrections import Learned
from app.llm.adapters.turns import Encoded, in_order
from app.llm.adapters.wire import arguments_table, dumps, mistral_id, short_id
from app.llm.tool_schemas import fitted, wire_name
from app.schema.message import (
    Block,
    ImageBlock,
    Message,
    ModelSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from app.schema.request import ModelRequest, ToolSpec

_LEVELS = ("low", "medium", "high", "max")
EFFORTS: dict[EffortStyle, tuple[str, ...]] = {
    "openai": ("off", "none", "minimal", *_LEVELS, "xhigh"),
    "deepseek": ("off", "none", *_LEVELS),
    "openrouter": ("off", "none", "minimal", *_LEVELS, "xhigh"),
}
"""The reasoning efforts a user may name; `off` and `none` are one. Which of them a model has, its vendor says."""
NO_OUTPUT = "(no output)"


class ChatEncoder:
    """Encodes requests for one account. `route` and `quirks` decide which thinking is replayed."""

    def __init__(self, route: str, quirks: Quirks) -> None:
        self._route = route
        self._quirks = quirks
        own = quirks.reasoning_replay or not quirks.empty_text
        self._call_id = mistral_id if quirks.short_ids else short_id
        self._key = f"chat:{route}" if own else "chat"
        if quirks.short_ids:
            self._key += ":short"
        self._bare = not quirks.empty_parameters

    def body(
        self, request: ModelRequest, learned: Learned, *, token_field: str, temperature: bool, one_call: bool = False
    ) -> bytes:
        """The request's JSON bytes; always a streaming request. `one_call` asks for at most one call in the reply."""
        return b"".join(
            (
                self._head(request, learned),
                b",".join(self._messages(request, learned)),
                self._tail(request, learned, token_field=token_field, temperature=temperature, one_call=one_call),
            )
        )

    def _head(self, request: ModelRequest, learned: Learned) -> bytes:
        head = b'{"model":' + dumps(request.config.model) + b',"stream":true'
        if self._quirks.stream_usage and "stream_options" not in learned.dropped:
            head += b',"stream_options":{"include_usage":true}'
        if request.tools:
            head += b',"tools":[' + b",".join(tool_bytes(spec, bare=self._bare) for spec in request.tools) + b"]"
        return head + b',"messages":['

    def _messages(self, request: ModelRequest, learned: Learned) -> Iterator[bytes]:
        if request.system:
            yield dumps({"role": "user" if "system" in learned.dropped else "system", "content": request.system})
        yield from in_order(self._encoded(request.messages))
        if words := in_words(request, learned):
            yield dumps({"role": "user", "content": words})

    def _encoded(self, messages: Iterable[Message]) -> Iterator[Encoded]:
        for message in messages:
            encoded: Encoded | None = message.wire.get(self._key)
            if encoded is None:
                encoded = message.wire[self._key] = self._message(message)
            yield encoded

    def _tail(
        self, request: ModelRequest, learned: Learned, *, token_field: str, temperature: bool, one_call: bool
    ) -> bytes:
        config = request.config
        options: dict[str, Any] = {}
        if request.tools and request.tool_choice != "auto" and "tool_choice" not in learned.dropped:
            options["tool_choice"] = request.tool_choice
        if request.tools and one_call and "parallel_tool_calls" not in learned.dropped:
            options["parallel_tool_calls"] = False
        if config.max_tokens is not None:
            options[learned.token_field or token_field] = config.max_tokens
        if config.temperature is not None and temperature and "temperature" not in learned.dropped:
            options["temperature"] = config.temperature
        if config.stop is not None and "stop" not in learned.dropped:
            options["stop"] = list(config.stop)
        if config.reasoning_effort is not None and "reasoning_effort" not in learned.dropped:
            options |= _effort(self._quirks.effort_style, config.reasoning_effort)
        if request.response_schema is not None and "response_format" not in learned.dropped:
            schema = {"name": "reply", "schema": request.response_schema}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        return b"]" + (b"," + dumps(options)[1:] if options else b"}")

    def _message(self, message: Message) -> Encoded:
        if message.tool_results:
            return self._results(message)
        entry = self._assistant(message) if message.role == "assistant" else _user(message.content)
        return Encoded(dumps(entry), b"", is_result=False)

    def _results(self, message: Message) -> Encoded:
        """Tool entries; what else the message holds, and images, which most servers take only from a user, wait.

        A user entry may not stand between two results of the same turn.
        """
        entries: list[bytes] = []
        after: list[bytes] = []
        rest = [block for block in message.content if not isinstance(block, ToolResultBlock)]
        for result in message.tool_results:
            images = [block for block in result.content if isinstance(block, ImageBlock)]
            text = result.text or ("(see the image below)" if images else NO_OUTPUT)
            call_id = self._call_id(result.call_id)
            entries.append(dumps({"role": "tool", "tool_call_id": call_id, "content": text}))
            if images:
                after.append(dumps(_user((TextBlock(f"Image of the tool result {call_id}:"), *images))))
        if any(isinstance(block, TextBlock | ImageBlock) for block in rest):
            after.append(dumps(_user(rest)))
        return Encoded(b",".join(entries), b",".join(after), is_result=True)

    def _assistant(self, message: Message) -> dict[str, Any]:
        calls = message.tool_calls
        nothing = None if calls and not self._quirks.empty_text else ""
        entry: dict[str, Any] = {"role": "assistant", "content": message.text or nothing}
        if self._quirks.reasoning_replay and message.reasoning and self._is_ours(message):
            entry["reasoning_content"] = message.reasoning
        if calls:
            entry["tool_calls"] = [self._call(call) for call in calls]
        return entry

    def _call(self, call: ToolCallBlock) -> dict[str, Any]:
        function = {"name": wire_name(call.name), "arguments": wire_arguments(call.arguments)}
        return {"id": self._call_id(call.id), "type": "function", "function": function}

    def _is_ours(self, message: Message) -> bool:
        return isinstance(message.source, ModelSource) and message.source.provider == self._route


def tool_bytes(spec: ToolSpec, *, bare: bool = False) -> bytes:
    """A tool as chat completions describe it, encoded once. `bare`: parameters are left out where there are none."""
    key = "chat:bare" if bare else "chat"
    known = spec.wire.get(key)
    if known is None:
        tool = fitted(spec, "gemini" if bare else "chat")
        function: dict[str, Any] = {"name": tool.name, "description": tool.description}
        if not bare or tool.parameters.get("properties"):
            function["parameters"] = tool.parameters
        known = spec.wire[key] = dumps({"type": "function", "function": function})
    return known


def wire_arguments(raw: str) -> str:
    """The raw argument text as the model wrote it, or `{}` for text that is no JSON object.

    Servers parse what they are sent: llama.cpp answers 500 to a broken object of its own model. The history keeps
    the raw text, and the tool result says what was wrong with it.
    """
    return raw if arguments_table(raw) is not None else "{}"


def _user(content: Iterable[Block]) -> dict[str, Any]:
    return {"role": "user", "content": _user_content(content)}


def in_words(request: ModelRequest, learned: Learned) -> str:
    """What the server refused as an option, asked of the model itself at the tail of the request."""
    words: list[str] = []
    if request.tools and request.tool_choice == "required" and "tool_choice" in learned.dropped:
        words.append("Answer with a call of one of the tools.")
    if request.response_schema is not None and "response_format" in learned.dropped:
        schema = dumps(request.response_schema).decode()
        words.append(f"Answer with one JSON value that follows this JSON Schema, and nothing else: {schema}")
    return "\n".join(words)


def _user_content(content: Iterable[Block]) -> str | list[dict[str, Any]]:
    blocks = [block for block in content if not isinstance(block, ReasoningBlock)]
    if not any(isinstance(block, ImageBlock) for block in blocks):
        return "".join(block.text for block in blocks if isinstance(block, TextBlock))
    parts: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case TextBlock() if block.text:
                parts.append({"type": "text", "text": block.text})
            case ImageBlock():
                url: dict[str, Any] = {"url": f"data:{block.media_type};base64,{block.data}"}
                parts.append(
                    {
                        "type": "image_url",
                        "image_url": url if block.detail == "auto" else url | {"detail": block.detail},
                    }
                )
            case _:
                continue
    return parts


def _effort(style: EffortStyle, effort: str) -> dict[str, Any]:
    off = effort in ("off", "none")
    match style:
        case "deepseek":
            thinking = {"thinking": {"type": "disabled" if off else "enabled"}}
            return thinking if off else thinking | {"reasoning_effort": effort}
        case "openrouter":
            return {"reasoning": {"enabled": False} if off else {"effort": effort}}
        case "openai":
            return {"reasoning_effort": "none" if off else effort}

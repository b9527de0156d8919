"""Ollama's own dialect, outgoing: `/api/chat` bodies, each message encoded once. Wire facts: Ollama's API reference.

Ollama cuts a prompt that is longer than `num_ctx` without a word, and its own default is small. So every request names
a window: the user's, else the least step that holds prompt and answer. It only grows, because another window loads
the model anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.llm.adapters.chat_encode import NO_OUTPUT, in_words, tool_bytes
from app.llm.adapters.corrections import Learned
from app.llm.adapters.turns import Encoded, in_order
from app.llm.adapters.wire import arguments_table, dumps
from app.llm.models import ModelFacts
from app.llm.tool_schemas import wire_name
from app.schema.message import Block, ImageBlock, Message, ModelSource, TextBlock, ToolCallBlock
from app.schema.request import CallConfig, ModelRequest

EFFORTS = ("off", "none", "low", "medium", "high")
SMALLEST_WINDOW = 8192
"""Tokens; twice Ollama's own default, since the system prompt and the tools alone take a quarter of that."""
ANSWER_TOKENS = 2048
"""Room that is kept for an answer without a limit of its own."""
BYTES_PER_TOKEN = 3
"""On the safe side: English has four to five, Chinese three."""

Entry = dict[str, Any]


class OllamaEncoder:
    """`route` decides which thinking goes back: that of this account, beside a call it led to."""

    def __init__(self, route: str) -> None:
        self._route = route
        self._key = f"ollama:{route}"
        self._windows: dict[str, int] = {}

    def body(
        self,
        request: ModelRequest,
        learned: Learned,
        facts: ModelFacts,
        *,
        window: int | None,
        keep_alive: int | str | None = None,
    ) -> bytes:
        """`window`: tokens the user wants; None = the least step that fits."""
        head = b'{"model":' + dumps(request.config.model) + b',"stream":true'
        if request.tools:
            head += b',"tools":[' + b",".join(map(tool_bytes, request.tools)) + b"]"
        middle = head + b',"messages":[' + b",".join(self._entries(request, learned)) + b"]"
        num_ctx = window or self._fitting(request.config, len(middle), facts)
        loaded = {} if keep_alive is None else {"keep_alive": keep_alive}
        return middle + b"," + dumps(_tail(request, learned, facts, num_ctx) | loaded)[1:]

    def _fitting(self, config: CallConfig, size: int, facts: ModelFacts) -> int:
        needed = size // BYTES_PER_TOKEN + (config.max_tokens or ANSWER_TOKENS)
        window = self._windows.get(config.model, SMALLEST_WINDOW)
        while window < needed:
            window *= 2
        self._windows[config.model] = window = min(window, facts.context_window or window)
        return window

    def _entries(self, request: ModelRequest, learned: Learned) -> Iterator[bytes]:
        if request.system:
            yield dumps({"role": "user" if "system" in learned.dropped else "system", "content": request.system})
        yield from in_order(self._encoded(request.messages))
        if words := in_words(request, learned):
            yield dumps({"role": "user", "content": words})

    def _encoded(self, messages: Iterable[Message]) -> Iterator[Encoded]:
        names: dict[str, str] = {}
        for message in messages:
            names.update((call.id, wire_name(call.name)) for call in message.tool_calls)
            encoded: Encoded | None = message.wire.get(self._key)
            if encoded is None:
                encoded = message.wire[self._key] = self._message(message, names)
            yield encoded

    def _message(self, message: Message, names: Mapping[str, str]) -> Encoded:
        if message.tool_results:
            return _results(message, names)
        entry = self._assistant(message) if message.role == "assistant" else _user(message.content)
        return Encoded(dumps(entry), b"", is_result=False)

    def _assistant(self, message: Message) -> Entry:
        entry: Entry = {"role": "assistant", "content": message.text}
        is_ours = isinstance(message.source, ModelSource) and message.source.provider == self._route
        if is_ours and message.reasoning and message.tool_calls:
            entry["thinking"] = message.reasoning
        if message.tool_calls:
            entry["tool_calls"] = [_call(call) for call in message.tool_calls]
        return entry


def _results(message: Message, names: Mapping[str, str]) -> Encoded:
    entries: list[bytes] = []
    after: list[bytes] = []
    for result in message.tool_results:
        images = [block for block in result.content if isinstance(block, ImageBlock)]
        text = result.text or ("(see the image below)" if images else NO_OUTPUT)
        name = names.get(result.call_id, "tool")
        entries.append(dumps({"role": "tool", "content": text, "tool_name": name, "tool_call_id": result.call_id}))
        if images:
            after.append(dumps(_user((TextBlock(f"Image of the tool result {result.call_id}:"), *images))))
    rest = [block for block in message.content if isinstance(block, TextBlock | ImageBlock)]
    if rest:
        after.append(dumps(_user(rest)))
    return Encoded(b",".join(entries), b",".join(after), is_result=True)


def _user(content: Iterable[Block]) -> Entry:
    texts: list[str] = []
    images: list[str] = []
    for block in content:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ImageBlock():
                images.append(block.data)
            case _:
                continue
    return {"role": "user", "content": "".join(texts)} | ({"images": images} if images else {})


def _call(call: ToolCallBlock) -> Entry:
    given = arguments_table(call.arguments) or {}
    return {"id": call.id, "function": {"name": wire_name(call.name), "arguments": given}}


def _tail(request: ModelRequest, learned: Learned, facts: ModelFacts, num_ctx: int) -> dict[str, Any]:
    config = request.config
    tail: dict[str, Any] = {}
    if config.reasoning_effort is not None and "reasoning_effort" not in learned.dropped:
        tail["think"] = _think(config.model, config.reasoning_effort)
    if request.response_schema is not None and "response_format" not in learned.dropped:
        tail["format"] = request.response_schema
    options: dict[str, Any] = {"num_ctx": num_ctx}
    if config.max_tokens is not None:
        options["num_predict"] = config.max_tokens
    if config.temperature is not None and facts.temperature and "temperature" not in learned.dropped:
        options["temperature"] = config.temperature
    if config.stop and "stop" not in learned.dropped:
        options["stop"] = list(config.stop)
    return tail | {"options": options}


def _think(model: str, effort: str) -> bool | str:
    """gpt-oss has levels; other models think or do not."""
    if effort in ("off", "none"):
        return False
    return effort if "gpt-oss" in model else True

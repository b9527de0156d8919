"""OpenAI Responses, outgoing: messages become input items, each encoded once and kept beside its value.

Stateless: `store` is false and no response is referred to, so a request says everything and the thinking of earlier
turns goes back as the encrypted items the server gave. A body is head + joined items + tail, as in `chat_encode.py`.
Wire facts: OpenAI API reference, "Create a model response".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from app.llm.adapters.chat_encode import NO_OUTPUT, in_words, wire_arguments
from app.llm.adapters.corrections import Learned
from app.llm.adapters.turns import Encoded, in_order
from app.llm.adapters.wire import dumps, short_id
from app.llm.models import ModelFacts
from app.llm.tool_schemas import fitted, wire_name
from app.schema.errors import LLMError
from app.schema.message import (
    JSON,
    Block,
    ImageBlock,
    Message,
    ModelSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    thaw_json,
)
from app.schema.request import ModelRequest, ToolSpec

EFFORTS = ("off", "none", "minimal", "low", "medium", "high", "xhigh", "max")
MIN_OUTPUT_TOKENS = 16
"""OpenAI refuses a smaller `max_output_tokens`."""
Item = dict[str, Any]


class ResponsesEncoder:
    """Encodes requests for one account. `origin` is its address: encrypted thinking goes back nowhere else.

    `of_openai` says that the account is OpenAI's own service, which sees images inside outputs and summarises thinking.
    """

    def __init__(self, origin: str, *, of_openai: bool) -> None:
        self._origin = origin
        self._of_openai = of_openai
        self._keys = {replays: f"responses:{origin}:{of_openai}:{replays}" for replays in (True, False)}

    def body(self, request: ModelRequest, learned: Learned, facts: ModelFacts) -> bytes:
        """The request's JSON bytes; always a streaming request. `UNSUPPORTED_OPTION` for stop sequences."""
        if request.config.stop:
            raise LLMError(
                "the Responses API takes no stop sequences",
                "UNSUPPORTED_OPTION",
                hint='leave `stop` out, or use api_type = "openai"',
            )
        return b"".join(
            (
                self._head(request, learned),
                b",".join(self._items(request, learned)),
                self._tail(request, learned, facts),
            )
        )

    def _head(self, request: ModelRequest, learned: Learned) -> bytes:
        head = b'{"model":' + dumps(request.config.model) + b',"stream":true,"store":false'
        if request.system and "system" not in learned.dropped:
            head += b',"instructions":' + dumps(request.system)
        if request.tools:
            head += b',"tools":[' + b",".join(map(_tool, request.tools)) + b"]"
        return head + b',"input":['

    def _items(self, request: ModelRequest, learned: Learned) -> Iterator[bytes]:
        if request.system and "system" in learned.dropped:
            yield dumps(_user((TextBlock(request.system),)))
        yield from in_order(self._encoded(request.messages, replays="replay" not in learned.dropped))
        if words := in_words(request, learned):
            yield dumps(_user((TextBlock(words),)))

    def _encoded(self, messages: Iterable[Message], *, replays: bool) -> Iterator[Encoded]:
        key = self._keys[replays]
        for message in messages:
            encoded: Encoded | None = message.wire.get(key)
            if encoded is None:
                encoded = message.wire[key] = self._message(message, replays=replays)
            yield encoded

    def _tail(self, request: ModelRequest, learned: Learned, facts: ModelFacts) -> bytes:
        config = request.config
        options: Item = {}
        if request.tools and request.tool_choice != "auto" and "tool_choice" not in learned.dropped:
            options["tool_choice"] = request.tool_choice
        if request.tools and facts.parallel_tools is False and "parallel_tool_calls" not in learned.dropped:
            options["parallel_tool_calls"] = False
        if config.max_tokens is not None:
            options["max_output_tokens"] = max(MIN_OUTPUT_TOKENS, config.max_tokens)
        if config.temperature is not None and facts.temperature and "temperature" not in learned.dropped:
            options["temperature"] = config.temperature
        if request.response_schema is not None and "response_format" not in learned.dropped:
            schema = {"type": "json_schema", "name": "reply", "schema": request.response_schema}
            options["text"] = {"format": schema}
        if reasoning := self._reasoning(config.reasoning_effort, learned, facts):
            options["reasoning"] = reasoning
        # A model that does not think refuses to be asked for its thinking.
        if (facts.reasoning or not facts.known) and "include" not in learned.dropped:
            options["include"] = ["reasoning.encrypted_content"]
        return b"]" + (b"," + dumps(options)[1:] if options else b"}")

    def _reasoning(self, effort: str | None, learned: Learned, facts: ModelFacts) -> Item:
        reasoning: Item = {}
        if effort is not None and "reasoning_effort" not in learned.dropped:
            reasoning["effort"] = "none" if effort == "off" else effort
        if self._of_openai and facts.reasoning and "reasoning_summary" not in learned.dropped:
            reasoning["summary"] = "auto"
        return reasoning

    def _message(self, message: Message, *, replays: bool) -> Encoded:
        if message.tool_results:
            return self._results(message)
        if message.role != "assistant":
            return Encoded(dumps(_user(message.content)), b"", is_result=False)
        kept = self._kept(message) if replays else ()
        return Encoded(b",".join(map(dumps, _assistant(message.content, kept))), b"", is_result=False)

    def _kept(self, message: Message) -> tuple[JSON, ...]:
        """What the server sent beside each block of this message, or nothing when it is not this account's."""
        state = message.source.replay_state if isinstance(message.source, ModelSource) else None
        if not isinstance(state, Mapping):
            return ()
        table = cast("Mapping[str, JSON]", state)
        blocks = table.get("blocks")
        if table.get("responses") != self._origin or not isinstance(blocks, list | tuple):
            return ()
        kept = tuple(cast("Iterable[JSON]", blocks))
        return kept if len(kept) == len(message.content) else ()

    def _results(self, message: Message) -> Encoded:
        """Output items; what else the message holds waits, and so do images where outputs are text."""
        items: list[bytes] = []
        after: list[bytes] = []
        for result in message.tool_results:
            images = [block for block in result.content if isinstance(block, ImageBlock)]
            output: str | list[Item] = result.text or NO_OUTPUT
            if images and self._of_openai:
                output = _parts(result.content)
            elif images:
                output = result.text or "(see the image below)"
                after.append(
                    dumps(_user((TextBlock(f"Image of the tool result {short_id(result.call_id)}:"), *images)))
                )
            items.append(dumps({"type": "function_call_output", "call_id": short_id(result.call_id), "output": output}))
        rest = [block for block in message.content if isinstance(block, TextBlock | ImageBlock)]
        if rest:
            after.append(dumps(_user(rest)))
        return Encoded(b",".join(items), b",".join(after), is_result=True)


def _assistant(content: tuple[Block, ...], kept: tuple[JSON, ...]) -> list[Item]:
    items: list[Item] = []
    for block, beside in zip(content, kept or (None,) * len(content), strict=True):
        known: Item = thaw_json(beside) or {}
        match block:
            case TextBlock() if block.text:
                part = {"type": "output_text", "text": block.text}
                items.append({"type": "message", "role": "assistant", "content": [part], **known})
            case ToolCallBlock():
                arguments = wire_arguments(block.arguments)
                call = {"type": "function_call", "call_id": short_id(block.id), "name": wire_name(block.name)}
                items.append(call | {"arguments": arguments})
            case ReasoningBlock() if known:
                items.append(known)
            case _:
                continue
    # Thinking without the item it led to is refused ("without its required following item").
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _user(content: Iterable[Block]) -> Item:
    return {"type": "message", "role": "user", "content": _parts(content)}


def _parts(content: Iterable[Block]) -> list[Item]:
    parts: list[Item] = []
    for block in content:
        match block:
            case TextBlock() if block.text:
                parts.append({"type": "input_text", "text": block.text})
            case ImageBlock():
                url = f"data:{block.media_type};base64,{block.data}"
                parts.append({"type": "input_image", "image_url": url, "detail": block.detail})
            case _:
                continue
    return parts


def _tool(spec: ToolSpec) -> bytes:
    known = spec.wire.get("responses")
    if known is None:
        # Without the word, schemas are made strict by the server, which then refuses optional parameters.
        fit = fitted(spec, "responses")
        tool = {"name": fit.name, "description": fit.description, "parameters": fit.parameters, "strict": False}
        known = spec.wire["responses"] = dumps({"type": "function", **tool})
    return known

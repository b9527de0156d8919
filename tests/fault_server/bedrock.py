"""The Amazon Bedrock Converse wire: a `Reply` as a document, or as binary event frames with their check sums."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from .bedrock_check import check_request
from .behaviours import Delivery, InBand, Reply
from .openai_chat import cut, usage_of
from .record import Request
from .render import Dialect, Event

STOP = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use", "content_filter": "content_filtered"}
ERRORS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}
SIGNATURE = "EqQBCkgIBBABGAIiQ"


class Bedrock(Dialect):
    content_type = "application/vnd.amazon.eventstream"

    def claims(self, request: Request) -> bool:
        return request.method == "POST" and request.path.endswith(("/converse", "/converse-stream"))

    def streams(self, request: Request) -> bool:
        return request.path.endswith("/converse-stream")

    def check(self, body: Any) -> list[str]:
        return check_request(body)

    def error(self, code: int, message: str) -> Any:
        kind = ERRORS.get(code, "InternalServerException" if code >= 500 else "ValidationException")
        return {"__type": kind, "message": message or f"status {code}"}

    def in_band(self, error: InBand) -> Event:
        kind = {429: "throttlingException", 500: "internalServerException"}.get(error.code, error.code)  # type: ignore[call-overload]
        return Event(json.dumps({"message": error.message}), str(kind))

    def routes(self, models: tuple[str, ...]) -> dict[str, Any]:
        rows = [{"modelId": name, "modelName": name.title(), "outputModalities": ["TEXT"]} for name in models]
        rows.append({"modelId": "painter", "modelName": "Painter", "outputModalities": ["IMAGE"]})
        return {"/foundation-models": {"modelSummaries": rows}}

    def document(self, reply: Reply, request: Request) -> Any:
        return {
            "output": {"message": {"role": "assistant", "content": list(_content(reply, request))}},
            "stopReason": stop_reason(reply),
            "usage": counts(reply, request),
            "metrics": {"latencyMs": 1},
        }

    def events(self, reply: Reply, request: Request) -> list[Event]:
        return [Event(json.dumps(payload, ensure_ascii=False), name) for name, payload in _events(reply, request)]

    def frame(self, event: Event, delivery: Delivery, *, blank: bool) -> bytes:
        return frame(event.name or "contentBlockDelta", event.payload.encode())


def frame(name: str, payload: bytes) -> bytes:
    """One message of `application/vnd.amazon.eventstream`; a name that ends in Exception makes it an exception."""
    kind = "exception" if name.endswith("Exception") else "event"
    headers = b"".join(
        _header(key, value)
        for key, value in (
            (f":{kind}-type", name),
            (":content-type", "application/json"),
            (":message-type", kind),
        )
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


def _header(name: str, value: str) -> bytes:
    text = value.encode()
    return struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(text)) + text


def model_of(request: Request) -> str:
    """The model that the path names."""
    return unquote(request.path.removeprefix("/model/").rpartition("/")[0])


def stop_reason(reply: Reply) -> str:
    if reply.finish in ("auto", None):
        return "tool_use" if reply.tool_calls else "end_turn"
    return STOP.get(str(reply.finish), str(reply.finish))


def counts(reply: Reply, request: Request) -> dict[str, Any]:
    usage = usage_of(reply, request)
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "inputTokens": usage["prompt_tokens"] - cached,
        "outputTokens": usage["completion_tokens"],
        "totalTokens": usage["total_tokens"],
        "cacheReadInputTokens": cached,
        "cacheWriteInputTokens": 0,
    }


def _content(reply: Reply, request: Request) -> Iterator[dict[str, Any]]:
    if reply.reasoning:
        yield {"reasoningContent": {"reasoningText": {"text": reply.reasoning, "signature": SIGNATURE}}}
    if reply.text:
        yield {"text": reply.text}
    for index, each in enumerate(reply.tool_calls):
        call_id = each.id or f"tooluse_{request.number}_{index}"
        yield {"toolUse": {"toolUseId": call_id, "name": each.name, "input": json.loads(each.arguments)}}


def _events(reply: Reply, request: Request) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "messageStart", {"role": "assistant"}
    for index, block in enumerate(_content(reply, request)):
        place = {"contentBlockIndex": index}
        if (use := block.get("toolUse")) is not None:
            opened = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
            yield "contentBlockStart", {**place, "start": opened}
        for delta in _deltas(block, reply, index):
            yield "contentBlockDelta", {**place, "delta": delta, "p": "abcdefgh"}
        yield "contentBlockStop", place
    yield "messageStop", {"stopReason": stop_reason(reply)}
    if reply.usage_at != "absent":
        yield "metadata", {"usage": counts(reply, request), "metrics": {"latencyMs": 1}}


def _deltas(block: dict[str, Any], reply: Reply, index: int) -> Iterator[dict[str, Any]]:
    if "text" in block:
        pieces = reply.pieces if isinstance(reply.pieces, tuple) else cut(block["text"], reply.pieces)
        yield from ({"text": piece} for piece in pieces)
    elif "toolUse" in block:
        call = reply.tool_calls[index - bool(reply.reasoning) - bool(reply.text)]
        # A call without arguments comes without any piece.
        written = "" if call.arguments == "{}" else call.arguments
        yield from ({"toolUse": {"input": piece}} for piece in cut(written, reply.pieces))
    else:
        thought = block["reasoningContent"]["reasoningText"]
        yield from ({"reasoningContent": {"text": piece}} for piece in cut(thought["text"], reply.pieces))
        yield {"reasoningContent": {"signature": thought["signature"]}}

"""The Anthropic Messages wire: a `Reply` as a message or as its events, and what a strict server refuses."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from .behaviours import InBand, Reply
from .openai_chat import cut, usage_of
from .record import Request
from .render import Dialect, Event

REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
ERRORS = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 504: "timeout_error",
    529: "overloaded_error",
}  # fmt: skip
TOP_KEYS = frozenset(
    """
    model messages max_tokens system tools tool_choice thinking temperature top_p top_k stop_sequences stream metadata
    output_config cache_control service_tier
    """.split()  # noqa: SIM905
)
ID = re.compile(r"[a-zA-Z0-9_-]+")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
SEAL = "sig-"


class Messages(Dialect):
    def claims(self, request: Request) -> bool:
        return request.method == "POST" and request.path.partition("?")[0].endswith("/messages")

    def streams(self, request: Request) -> bool:
        return isinstance(request.json, dict) and request.json.get("stream") is True

    def events(self, reply: Reply, request: Request) -> list[Event]:
        return [Event(json.dumps(each, ensure_ascii=False), each["type"]) for each in _events(reply, request)]

    def document(self, reply: Reply, request: Request) -> Any:
        return _shell(reply, request) | {
            "content": [block for block, _ in _blocks(reply, request)],
            "stop_reason": _reason(reply),
            "usage": _usage(reply, request),
        }

    def error(self, code: int, message: str) -> Any:
        kind = ERRORS.get(code, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message or f"status {code}"}, "request_id": "req_1"}

    def in_band(self, error: InBand) -> Event:
        code = error.code if isinstance(error.code, int) else 500
        return Event(json.dumps(self.error(code, error.message)), "error")

    def check(self, body: Any) -> list[str]:
        return check_request(body)

    def routes(self, models: tuple[str, ...]) -> dict[str, Any]:
        rows = [{"type": "model", "id": name, "display_name": name.title()} for name in models]
        return {"/v1/models": {"data": rows, "has_more": False, "first_id": None, "last_id": None}}


def sealed(text: str) -> str:
    """The proof that this server made the thinking; it refuses any other."""
    return base64.b64encode(f"{SEAL}{text}".encode()).decode()


def _reason(reply: Reply) -> str | None:
    if reply.refusal:
        return "refusal"
    if reply.finish != "auto":
        return REASONS.get(reply.finish, reply.finish) if reply.finish else None
    return "tool_use" if reply.tool_calls and "finish_stop" not in reply.odd else "end_turn"


def _shell(reply: Reply, request: Request) -> dict[str, Any]:
    model = reply.model or (request.json or {}).get("model") or "test-model"
    return {"id": f"msg_{request.number}", "type": "message", "role": "assistant", "model": model, "content": []}


def _blocks(reply: Reply, request: Request) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(the whole block, its deltas)"""
    if reply.reasoning:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(reply.reasoning, reply.pieces)]
        deltas.append({"type": "signature_delta", "signature": sealed(reply.reasoning)})
        yield {"type": "thinking", "thinking": reply.reasoning, "signature": sealed(reply.reasoning)}, deltas
    if reply.text:
        pieces = reply.pieces if isinstance(reply.pieces, tuple) else cut(reply.text, reply.pieces)
        yield {"type": "text", "text": reply.text}, [{"type": "text_delta", "text": piece} for piece in pieces]
    for index, each in enumerate(reply.tool_calls):
        name = reply.tool_calls[0 if "id_duplicate" in reply.odd else index].id or f"toolu_{request.number}_{index}"
        pieces = ["", *cut(each.arguments, reply.pieces)] if each.arguments != "{}" else [""]
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        try:
            given = json.loads(each.arguments)
        except ValueError:
            given = {}
        yield {"type": "tool_use", "id": name, "name": each.name, "input": given}, deltas


def _events(reply: Reply, request: Request) -> Iterator[dict[str, Any]]:
    counted = _usage(reply, request)
    start = _shell(reply, request) | {"stop_reason": None, "usage": counted | {"output_tokens": 1}}
    if reply.usage_at == "absent":
        del start["usage"]
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, (block, deltas) in enumerate(_blocks(reply, request)):
        whole = "arguments_object" in reply.odd and block["type"] == "tool_use"
        empty = {"thinking": "", "signature": "", "text": "", "input": {}}
        opened = block if whole else block | {name: value for name, value in empty.items() if name in block}
        yield {"type": "content_block_start", "index": index, "content_block": opened}
        for delta in () if whole else deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    reason = _reason(reply)
    if reason is not None:
        more = {} if reply.usage_at == "absent" else {"usage": {"output_tokens": counted["output_tokens"]}}
        yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, **more}
    if reply.delivery.done and reason is not None:
        yield {"type": "message_stop"}


def _usage(reply: Reply, request: Request) -> dict[str, Any]:
    counted = usage_of(reply, request)
    cached = counted.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    thought = counted.get("completion_tokens_details", {}).get("reasoning_tokens")
    usage = {
        "input_tokens": counted["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": counted["completion_tokens"],
    }
    return usage | ({"output_tokens_details": {"thinking_tokens": thought}} if thought else {})


def check_request(body: Any) -> list[str]:
    """Every reason to refuse this body; sources: the API reference, and refusals of the service."""
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    problems = [f"{name}: Extra inputs are not permitted" for name in body.keys() - TOP_KEYS]
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or limit < 1:
        problems.append("max_tokens: Field required")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return [*problems, "messages: at least one message is required"]
    problems += _options(body, limit or 0)
    for position, message in enumerate(messages):
        problems += [f"messages.{position}: {each}" for each in _message(message)]
    return problems or [*_pairing(messages), *_order(messages)]


def _options(body: dict[str, Any], limit: int) -> Iterator[str]:
    tools = body.get("tools", [])
    choice = body.get("tool_choice", {})
    thinking = body.get("thinking", {})
    if choice and not tools:
        yield "tool_choice may only be specified while providing tools"
    for tool in tools:
        schema = tool.get("input_schema", {})
        if not NAME.fullmatch(tool.get("name", "")):
            yield f"tools.name: String should match pattern, got {tool.get('name')!r}"
        if schema.get("type") != "object":
            yield "tools.input_schema.type: Field required"
        if schema.keys() & {"oneOf", "allOf", "anyOf"}:
            yield "input_schema does not support oneOf, allOf, or anyOf at the top level"
    if thinking.get("type") in ("enabled", "adaptive"):
        if choice.get("type") in ("any", "tool"):
            yield "Thinking may not be enabled when tool_choice forces tool use."
        if "temperature" in body and body["temperature"] != 1:
            yield "`temperature` may only be set to 1 when thinking is enabled."
    if thinking.get("type") == "enabled" and not 1024 <= thinking.get("budget_tokens", 0) < limit:
        yield "thinking.budget_tokens: between 1024 and max_tokens"
    for block in body.get("system", []):
        if not block.get("text", "").strip():
            yield "system: text content blocks must be non-empty"


def _message(message: dict[str, Any]) -> Iterator[str]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        yield f"role: Input should be 'user' or 'assistant', got {role!r}"
    if not isinstance(content, list) or not content:
        yield "content: at least one block is required"
        return
    for block in content:
        yield from _block(block, role)


def _block(block: dict[str, Any], role: Any) -> Iterator[str]:
    kind = block.get("type")
    if kind == "text" and not block.get("text", "").strip():
        yield "text content blocks must contain non-whitespace text"
    if kind in ("tool_use", "thinking", "redacted_thinking") and role != "assistant":
        yield f"`{kind}` blocks can only be in `assistant` messages"
    if kind in ("tool_result", "image") and role != "user":
        yield f"`{kind}` blocks can only be in `user` messages"
    if kind == "image":
        try:
            base64.b64decode(block["source"]["data"], validate=True)
        except (binascii.Error, KeyError, ValueError):
            yield "image.source.base64: invalid base64 data"
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        yield "tool_use.input: Input should be a valid dictionary"
    for name in ("id", "tool_use_id"):
        if name in block and not ID.fullmatch(block[name]):
            yield f"{kind}.{name}: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if kind == "thinking" and block.get("signature") != sealed(block.get("thinking", "")):
        yield "Invalid `signature` in `thinking` block"
    if kind == "tool_result":
        for inner in block.get("content", []):
            yield from _block(inner, role)


def _pairing(messages: list[dict[str, Any]]) -> Iterator[str]:
    pending: list[str] = []
    for message in messages:
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if sorted(results) != sorted(pending):
            missing, unexpected = set(pending) - set(results), set(results) - set(pending)
            if missing:
                yield f"`tool_use` ids were found without `tool_result` blocks immediately after: {sorted(missing)}"
            if unexpected:
                yield f"unexpected `tool_use_id` found in `tool_result` blocks: {sorted(unexpected)}"
        kinds = [block["type"] for block in message["content"]]
        if "tool_result" in kinds and kinds[: len(results)] != ["tool_result"] * len(results):
            yield "`tool_result` blocks must come first"
        pending = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if len(set(pending)) != len(pending):
            yield "`tool_use` ids must be unique"
    if pending:
        yield f"`tool_use` ids were found without `tool_result` blocks immediately after: {pending}"


def _order(messages: list[dict[str, Any]]) -> Iterator[str]:
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    for before, after in itertools.pairwise(messages):
        if before["role"] == after["role"]:
            yield "messages: roles must alternate"
    last = messages[-1]["content"][-1]
    if messages[-1]["role"] == "assistant" and last["type"] == "text" and last["text"] != last["text"].rstrip():
        yield "final assistant content cannot end with trailing whitespace"

"""Ollama's own wire: `/api/chat` in JSON lines, `/api/pull`, `/api/tags`, and what a strict server refuses."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

from .behaviours import Delivery, InBand, Reply, status
from .openai_chat import cut, usage_of
from .openai_check import NAME
from .record import Request
from .render import Dialect, Event

TOP_KEYS = frozenset({"model", "messages", "tools", "stream", "think", "format", "options", "keep_alive"})
MESSAGE_KEYS = frozenset({"role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id"})
OPTION_KEYS = frozenset({"num_ctx", "num_predict", "temperature", "stop", "seed", "top_k", "top_p"})
CREATED = "2026-12-01T00:00:00Z"


class Ollama(Dialect):
    """`missing` names models that must be pulled first; `pulled` is what was."""

    content_type = "application/x-ndjson"

    def __init__(self, *, missing: tuple[str, ...] = ()) -> None:
        self.missing = set(missing)
        self.pulled: list[str] = []

    def claims(self, request: Request) -> bool:
        return (
            request.method == "POST" and request.path == "/api/chat" and request.json.get("model") not in self.missing
        )

    def streams(self, request: Request) -> bool:
        return isinstance(request.json, dict) and request.json.get("stream", True) is True

    def frame(self, event: Event, delivery: Delivery, *, blank: bool) -> bytes:
        return (event.payload + (delivery.line_end if blank else "")).encode()

    def events(self, reply: Reply, request: Request) -> list[Event]:
        lines = [*({"message": message, "done": False} for message in _messages(reply, request)), _last(reply, request)]
        shell = {"model": reply.model or request.json["model"], "created_at": CREATED}
        if reply.finish is None:
            lines.pop()
        return [Event(json.dumps(shell | line, ensure_ascii=False)) for line in lines]

    def document(self, reply: Reply, request: Request) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or ""}
        if reply.reasoning:
            message["thinking"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = _calls(reply, request)
        shell = {"model": reply.model or request.json["model"], "created_at": CREATED}
        return shell | _last(reply, request) | {"message": message}

    def error(self, code: int, message: str) -> Any:
        return {"error": message or f"status {code}"}

    def in_band(self, error: InBand) -> Event:
        said = "an error was encountered while running the model: " if error.code == 500 else ""
        return Event(json.dumps({"error": f"{said}{error.message}"}))

    def check(self, body: Any) -> list[str]:
        return check_request(body)

    def routes(self, models: tuple[str, ...]) -> dict[str, Any]:
        rows = [{"name": name, "model": name, "size": 1} for name in models]
        return {"/api/tags": {"models": rows}, "/api/chat": self._not_there, "/api/pull": self._pull}

    def _not_there(self, request: Request) -> Any:
        return status(404, {"error": f"model '{request.json['model']}' not found"})

    def _pull(self, request: Request) -> Any:
        model = request.json["model"]
        if model not in self.missing:
            return status(200, '{"status":"pulling manifest"}\n{"error":"pull model manifest: file does not exist"}\n')
        self.missing.discard(model)
        self.pulled.append(model)
        layers = [{"status": "pulling 1", "total": 100, "completed": done} for done in (0, 40, 100)]
        steps = [{"status": "pulling manifest"}, *layers, {"status": "success"}]
        return status(200, "".join(json.dumps(step) + "\n" for step in steps))


def _messages(reply: Reply, request: Request) -> Iterator[dict[str, Any]]:
    for piece in cut(reply.reasoning, reply.pieces):
        yield {"role": "assistant", "content": "", "thinking": piece}
    for piece in reply.pieces if isinstance(reply.pieces, tuple) else cut(reply.text or "", reply.pieces):
        yield {"role": "assistant", "content": piece}
    for call in _calls(reply, request):
        yield {"role": "assistant", "content": "", "tool_calls": [call]}


def _calls(reply: Reply, request: Request) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for index, each in enumerate(reply.tool_calls):
        function = {"index": index, "name": each.name, "arguments": json.loads(each.arguments)}
        named = {} if "id_none" in reply.odd else {"id": each.id or f"call_{request.number}_{index}"}
        calls.append(named | {"function": function})
    return calls


def _last(reply: Reply, request: Request) -> dict[str, Any]:
    counted = usage_of(reply, request)
    reason = "stop" if reply.finish == "auto" else reply.finish
    last = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": reason, "total_duration": 1}
    if reply.usage_at == "absent":
        return last
    return last | {"prompt_eval_count": counted["prompt_tokens"], "eval_count": counted["completion_tokens"]}


def check_request(body: Any) -> list[str]:
    """Every reason why Ollama refuses this body, or would misread it in silence."""
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    problems = [f"unknown field {name}" for name in body.keys() - TOP_KEYS]
    if not body.get("model"):
        problems.append("model is required")
    options = body.get("options", {})
    problems += [f"unknown option {name}" for name in options.keys() - OPTION_KEYS]
    if not isinstance(options.get("num_ctx"), int):
        problems.append("options.num_ctx: without it a long prompt is cut in silence")
    problems += [
        f"invalid tool name {tool['function'].get('name')!r}"
        for tool in body.get("tools", [])
        if not NAME.fullmatch(tool["function"].get("name", ""))
    ]
    known: set[str] = set()
    for position, message in enumerate(body.get("messages", [])):
        problems += [f"messages[{position}]: {each}" for each in _message(message, known)]
    return problems


def _message(message: dict[str, Any], known: set[str]) -> Iterator[str]:
    if unknown := message.keys() - MESSAGE_KEYS:
        yield f"unknown fields {sorted(unknown)}"
    role = message.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        yield f"invalid role {role!r}"
    if not isinstance(message.get("content"), str):
        yield "content is a string here"
    for image in message.get("images", []):
        try:
            base64.b64decode(image, validate=True)
        except (binascii.Error, ValueError):
            yield "illegal base64 data"
    for call in message.get("tool_calls", []):
        known.add(call["function"]["name"])
        if not isinstance(call["function"].get("arguments"), dict):
            yield "json: cannot unmarshal string into arguments"
    if role == "tool" and message.get("tool_name") not in known:
        yield "a result of a tool that was not called"

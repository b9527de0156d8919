"""The OpenAI Responses wire: a `Reply` as a response object or as its events."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from .behaviours import InBand, Reply
from .openai_chat import CREATED, OpenAIChat, cut, usage_of
from .record import Request
from .render import Event
from .responses_check import SEAL, check_request

REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses(OpenAIChat):
    done: str | None = None

    def claims(self, request: Request) -> bool:
        return request.method == "POST" and request.path.partition("?")[0].endswith("/responses")

    def check(self, body: Any) -> list[str]:
        return check_request(body)

    def in_band(self, error: InBand) -> Event:
        code = {429: "rate_limit_exceeded", 500: "server_error"}.get(error.code, error.code)  # type: ignore[call-overload]
        payload = {"type": "error", "code": code, "message": error.message, "param": None, "sequence_number": 99}
        return Event(json.dumps(payload), "error")

    def document(self, reply: Reply, request: Request) -> Any:
        return _response(reply, request, _items(reply, request))

    def events(self, reply: Reply, request: Request) -> list[Event]:
        events: list[Event] = []
        number = 0
        for payload in _events(reply, request):
            if "unknown_events" in reply.odd:
                events.append(Event(json.dumps({"type": "response.weather.changed", "sequence_number": number})))
                number += 1
            if "item_id" in payload and "changing_ids" in reply.odd:
                payload["item_id"] += f"-{number}"
            payload["sequence_number"] = number
            number += 1
            text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
            events.append(Event(text, payload["type"]))
        return events


def sealed(text: str) -> str:
    """What this server calls encrypted: it reads it again, and refuses anything else."""
    return SEAL + base64.b64encode(text.encode()).decode()


def _items(reply: Reply, request: Request) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    name = f"{request.number}"
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        asked = "reasoning.encrypted_content" in request.json.get("include", [])
        sealed_text = {"encrypted_content": sealed(reply.reasoning) if asked else None}
        items.append({"id": f"rs_{name}", "type": "reasoning", "summary": summary, **sealed_text})
    parts: list[dict[str, Any]] = []
    if reply.text:
        parts.append({"type": "output_text", "text": reply.text, "annotations": []})
    if reply.refusal:
        parts.append({"type": "refusal", "refusal": reply.refusal})
    if parts:
        phase = {"phase": "commentary" if reply.tool_calls else "final_answer"}
        message = {"type": "message", "role": "assistant", "status": "completed", "content": parts}
        items.append({"id": f"msg_{name}", **message, **phase})
    for index, each in enumerate(reply.tool_calls):
        arguments: Any = json.loads(each.arguments) if "arguments_object" in reply.odd else each.arguments
        call_id = each.id or f"call_{request.number}_{index}"
        call = {"call_id": call_id, "name": each.name, "arguments": arguments, "status": "completed"}
        items.append({"id": f"fc_{name}_{index}", "type": "function_call", **call})
    return items


def _started(reply: Reply, request: Request) -> dict[str, Any]:
    model = reply.model or request.json["model"]
    return {"id": f"resp_{request.number}", "object": "response", "status": "in_progress", "model": model, "output": []}


def _response(reply: Reply, request: Request, output: list[dict[str, Any]]) -> dict[str, Any]:
    finish = "auto" if reply.finish in ("auto", None, "stop", "tool_calls") else reply.finish
    status = "completed" if finish == "auto" else "incomplete"
    details = {"reason": REASONS.get(str(finish), finish)} if status == "incomplete" else None
    return _started(reply, request) | {
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": details,
        "instructions": None,
        "output": output,
        "parallel_tool_calls": request.json.get("parallel_tool_calls", True),
        "store": False,
        "tool_choice": request.json.get("tool_choice", "auto"),
        "tools": [],
        "usage": None if reply.usage_at == "absent" else _counts(usage_of(reply, request)),
        "metadata": {},
    }


def _counts(usage: dict[str, Any]) -> dict[str, Any]:
    details = usage.get("prompt_tokens_details", {})
    thought = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": details.get("cached_tokens", 0), "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage["total_tokens"],
    }


def _events(reply: Reply, request: Request) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _started(reply, request)}
    yield {"type": "response.in_progress", "response": _started(reply, request)}
    items = _items(reply, request)
    for index, item in enumerate(items):
        empty = {"summary": [], "content": [], "arguments": ""}
        opened = item | {name: value for name, value in empty.items() if name in item}
        if "status" in item:
            opened["status"] = "in_progress"
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        if "no_deltas" not in reply.odd:
            for event in _pieces(item, reply):
                yield {"output_index": index, "item_id": item["id"], **event}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    final = _response(reply, request, items)
    yield {"type": f"response.{final['status']}", "response": final}


def _pieces(item: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    match item["type"]:
        case "reasoning":
            kind = "response.reasoning_summary"
            part = item["summary"][0]
            yield {"type": f"{kind}_part.added", "summary_index": 0, "part": {"type": "summary_text", "text": ""}}
            for piece in cut(part["text"], reply.pieces):
                yield {"type": f"{kind}_text.delta", "summary_index": 0, "delta": piece}
            yield {"type": f"{kind}_text.done", "summary_index": 0, "text": part["text"]}
            yield {"type": f"{kind}_part.done", "summary_index": 0, "part": part}
        case "message":
            for index, part in enumerate(item["content"]):
                for event in _part_pieces(part, reply):
                    yield {"content_index": index, **event}
        case _:
            kind = "response.function_call_arguments"
            if isinstance(item["arguments"], str):
                for piece in cut(item["arguments"], reply.pieces):
                    yield {"type": f"{kind}.delta", "delta": piece}
            yield {"type": f"{kind}.done", "name": item["name"], "arguments": item["arguments"]}


def _part_pieces(part: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    member = "refusal" if part["type"] == "refusal" else "text"
    kind = f"response.{part['type']}"
    split = reply.pieces if isinstance(reply.pieces, tuple) and member == "text" else cut(part[member], reply.pieces)
    yield {"type": "response.content_part.added", "part": part | {member: ""}}
    for piece in split:
        yield {"type": f"{kind}.delta", "delta": piece}
    yield {"type": f"{kind}.done", member: part[member]}
    yield {"type": "response.content_part.done", "part": part}

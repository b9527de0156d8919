"""What a strict Responses server refuses in a request body; a pure function, no transport.

Sources: the parameter types of the official SDK, and refusals of the service (an output without its call, thinking
without what followed it, sealed thinking that it did not write itself, fewer than 16 output tokens).
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .openai_check import NAME, _image, _is_object, _keys

TOP_KEYS = frozenset(
    """
    background context_management conversation include input instructions max_output_tokens max_tool_calls metadata
    model parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention
    reasoning safety_identifier service_tier store stream stream_options temperature text tool_choice tools
    top_logprobs top_p truncation user
    """.split()  # noqa: SIM905
)
ITEM_KEYS = {
    "message": frozenset({"type", "role", "content", "id", "status", "phase"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "status"}),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content"}),
}
INCLUDES = frozenset({"reasoning.encrypted_content", "message.output_text.logprobs"})
EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
SUMMARIES = frozenset({"auto", "concise", "detailed"})
SEAL = "gAAAAA"


def check_request(body: Any) -> list[str]:
    """Every reason to refuse this body, empty when it is valid."""
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    items = body.get("input")
    if not isinstance(items, list) or not items or not all(isinstance(each, dict) for each in items):
        return ["input: a non-empty list of objects is wanted"]
    return [
        *_top(body),
        *_tools(body),
        *(f"input[{index}]: {problem}" for index, item in enumerate(items) for problem in _item(item)),
        *_pairing(items),
        *_followed(items),
    ]


def _top(body: dict[str, Any]) -> Iterator[str]:
    yield from _keys(body, TOP_KEYS)
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model: a non-empty string is wanted"
    if (limit := body.get("max_output_tokens")) is not None and limit < 16:
        yield f"max_output_tokens: integer below minimum value, expected a value >= 16, got {limit}"
    yield from (f"include: unknown value {name}" for name in body.get("include", []) if name not in INCLUDES)
    reasoning = body.get("reasoning", {})
    yield from _keys(reasoning, frozenset({"effort", "summary", "mode", "context"}))
    if reasoning.get("effort", "low") not in EFFORTS:
        yield f"reasoning.effort: unknown value {reasoning['effort']}"
    if reasoning.get("summary", "auto") not in SUMMARIES:
        yield f"reasoning.summary: unknown value {reasoning['summary']}"
    form = body.get("text", {}).get("format", {"type": "text"})
    if form["type"] == "json_schema":
        yield from _keys(form, frozenset({"type", "name", "schema", "strict", "description"}))
        if not NAME.fullmatch(str(form.get("name", ""))) or not isinstance(form.get("schema"), dict):
            yield "text.format: a name and a schema are wanted"


def _tools(body: dict[str, Any]) -> Iterator[str]:
    if "tools" not in body:
        yield from (f"{key} without tools" for key in ("tool_choice", "parallel_tool_calls") if key in body)
        return
    names: Counter[str] = Counter()
    for index, tool in enumerate(body["tools"]):
        yield from (
            f"tools[{index}]: {problem}"
            for problem in _keys(tool, frozenset({"type", "name", "description", "parameters", "strict"}))
        )
        if tool.get("type") != "function" or not NAME.fullmatch(str(tool.get("name", ""))):
            yield f"tools[{index}]: missing required parameter name"
        if not isinstance(tool.get("parameters"), dict):
            yield f"tools[{index}]: parameters are not an object"
        elif tool.get("strict") is not False and tool["parameters"].get("additionalProperties") is not False:
            yield f"tools[{index}]: a strict schema needs additionalProperties false"
        names[str(tool.get("name"))] += 1
    yield from (f"tools: {name} is offered {count} times" for name, count in names.items() if count > 1)
    if isinstance(choice := body.get("tool_choice"), str) and choice not in ("auto", "none", "required"):
        yield f"tool_choice {choice} is unknown"


def _item(item: dict[str, Any]) -> Iterator[str]:
    kind = item.get("type", "message")
    if kind not in ITEM_KEYS:
        yield f"unknown type {kind!r}"
        return
    yield from _keys(item, ITEM_KEYS[kind])
    match kind:
        case "message":
            yield from _message(item)
        case "function_call":
            if not NAME.fullmatch(str(item.get("name", ""))):
                yield f"illegal name {item.get('name')!r}"
            if not isinstance(item.get("arguments"), str) or not _is_object(item["arguments"]):
                yield f"arguments are not the text of a JSON object: {item.get('arguments')!r}"
        case "function_call_output":
            if isinstance(item.get("output"), list):
                yield from _parts(item["output"], "input")
            elif not isinstance(item.get("output"), str):
                yield "output: a string or a list of parts is wanted"
        case _:
            yield from _reasoning(item)


def _message(item: dict[str, Any]) -> Iterator[str]:
    role = item.get("role")
    if role not in ("user", "system", "developer", "assistant"):
        yield f"unknown role {role!r}"
    if isinstance(item.get("content"), list) and item["content"]:
        yield from _parts(item["content"], "output" if role == "assistant" else "input")
    else:
        yield "content: a non-empty list of parts is wanted"
    if item.get("phase", "commentary") not in ("commentary", "final_answer"):
        yield f"unknown phase {item['phase']!r}"


def _parts(parts: list[Any], side: str) -> Iterator[str]:
    for index, part in enumerate(parts):
        match part:
            case {"type": kind, "text": str(text)} if kind == f"{side}_text":
                yield from _keys(part, frozenset({"type", "text", "annotations", "logprobs"}))
                if not text:
                    yield f"content[{index}]: an empty text"
            case {"type": "input_image", "image_url": str(url)} if side == "input":
                yield from _keys(part, frozenset({"type", "image_url", "detail"}))
                yield from _image(url)
            case {"type": "refusal", "refusal": str()} if side == "output":
                pass
            case _:
                yield f"content[{index}]: not a part for this role: {str(part)[:60]}"


def _reasoning(item: dict[str, Any]) -> Iterator[str]:
    if not isinstance(item.get("id"), str) or not isinstance(item.get("summary"), list):
        yield "missing required parameter id or summary"
    text = item.get("encrypted_content", "")
    try:
        base64.b64decode(text.removeprefix(SEAL), validate=True).decode()
        read = text.startswith(SEAL)
    except (binascii.Error, UnicodeDecodeError):
        read = False
    if not read:
        yield "invalid_encrypted_content: the encrypted content could not be verified"


def _pairing(items: list[dict[str, Any]]) -> Iterator[str]:
    calls: Counter[str] = Counter()
    ids: Counter[str] = Counter(item["id"] for item in items if "id" in item)
    yield from (f"Duplicate item found with id {name}" for name, count in ids.items() if count > 1)
    waiting: set[str] = set()
    for item in items:
        name = str(item.get("call_id"))
        if item.get("type") == "function_call":
            calls[name] += 1
            waiting.add(name)
        elif item.get("type") == "function_call_output":
            if name not in waiting:
                yield f"No tool call found for function call output with call_id {name}."
            waiting.discard(name)
    yield from (f"the call id {name} was used twice" for name, count in calls.items() if count > 1)
    yield from (f"No tool output found for function call {name}." for name in sorted(waiting))


def _followed(items: list[dict[str, Any]]) -> Iterator[str]:
    for item, after in zip(items, [*items[1:], {}], strict=True):
        led = after.get("type") in ("function_call", "reasoning") or after.get("role") == "assistant"
        if item.get("type") == "reasoning" and not led:
            yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."

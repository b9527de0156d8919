"""What a strict chat-completions server refuses in a request body; a pure function, no transport.

Sources: the API reference of chat completions, and refusals seen at compatible servers (null values, empty tools,
calls without results).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

TOP_KEYS = frozenset(
    """
    audio frequency_penalty logit_bias logprobs max_completion_tokens max_tokens messages metadata modalities model n
    parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention reasoning_effort
    response_format safety_identifier seed service_tier stop store stream stream_options temperature tool_choice
    tools top_logprobs top_p user verbosity web_search_options
    """.split()  # noqa: SIM905
)
MESSAGE_KEYS = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset({"role", "content", "name", "tool_calls", "refusal", "audio"}),
    "tool": frozenset({"role", "content", "tool_call_id"}),
}
REASONING_KEYS = frozenset({"reasoning_content", "reasoning", "reasoning_details"})
SYSTEM_ROLES = ("system", "developer")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
DATA_URL = re.compile(r"data:([a-z0-9.+/-]+);base64,", re.IGNORECASE)


def check_request(
    body: Any, *, accept_reasoning: bool = False, strict_arguments: bool = True, extra_keys: Collection[str] = ()
) -> list[str]:
    """Every reason to refuse this body, empty when it is valid.

    `accept_reasoning` admits reasoning fields in assistant messages; `strict_arguments` wants the arguments of past
    calls to be JSON objects; `extra_keys` are admitted at the top level.
    """
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        return ["messages: a non-empty list of objects is wanted"]
    return [
        *_top(body, extra_keys),
        *_tools(body),
        *_order(messages),
        *(
            f"messages[{index}]: {problem}"
            for index, message in enumerate(messages)
            for problem in _message(message, accept_reasoning=accept_reasoning, strict_arguments=strict_arguments)
        ),
        *_pairing(messages),
    ]


def _top(body: dict[str, Any], extra_keys: Collection[str]) -> Iterator[str]:
    for key, value in body.items():
        if key not in TOP_KEYS and key not in extra_keys:
            yield f"unknown key {key}"
        if value is None:
            yield f"{key} is null"
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model: a non-empty string is wanted"
    if "stream_options" in body and body.get("stream") is not True:
        yield "stream_options without stream"
    if "max_tokens" in body and "max_completion_tokens" in body:
        yield "max_tokens and max_completion_tokens exclude each other"


def _tools(body: dict[str, Any]) -> Iterator[str]:
    if "tools" not in body:
        yield from (f"{key} without tools" for key in ("tool_choice", "parallel_tool_calls") if key in body)
        return
    tools = body["tools"]
    if not isinstance(tools, list) or not tools:
        yield "tools: a non-empty list is wanted"
        return
    names: Counter[str] = Counter()
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            yield f"tools[{index}]: a function is wanted"
            continue
        names[str(function.get("name"))] += 1
        yield from (f"tools[{index}]: {problem}" for problem in _function(tool, function))
    yield from (f"tools: {name} is offered {count} times" for name, count in names.items() if count > 1)
    choice = body.get("tool_choice")
    wanted = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if wanted is not None and wanted not in names:
        yield f"tool_choice names {wanted}, which is not among the tools"
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        yield f"tool_choice {choice} is unknown"


def _function(tool: dict[str, Any], function: dict[str, Any]) -> Iterator[str]:
    yield from _keys(tool, frozenset({"type", "function"}))
    yield from _keys(function, frozenset({"name", "description", "parameters", "strict"}))
    if not NAME.fullmatch(str(function.get("name", ""))):
        yield f"illegal name {function.get('name')!r}"
    if not isinstance(function.get("parameters", {}), dict):
        yield "parameters are not an object"


def _order(messages: list[dict[str, Any]]) -> Iterator[str]:
    places = [index for index, message in enumerate(messages) if message.get("role") in SYSTEM_ROLES]
    if len(places) > 1:
        yield f"{len(places)} system messages"
    if places and places[0] != 0:
        yield f"messages[{places[0]}]: the system message is not the first"


def _message(message: dict[str, Any], *, accept_reasoning: bool, strict_arguments: bool) -> Iterator[str]:
    role = message.get("role")
    if role not in MESSAGE_KEYS:
        yield f"unknown role {role!r}"
        return
    assistant = role == "assistant"
    known = MESSAGE_KEYS[role] | (REASONING_KEYS if assistant and accept_reasoning else frozenset())
    calls = message.get("tool_calls")
    may_be_null = "content" if assistant and calls else ""
    yield from _keys(message, known, may_be_null=may_be_null)
    if assistant:
        yield from _assistant(message, accept_reasoning=accept_reasoning, strict_arguments=strict_arguments)
    elif not isinstance(message.get("content"), str | list):
        yield "content: a string or a list of parts is wanted"
    if isinstance(message.get("content"), list):
        yield from _parts(message["content"], images=role == "user")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield "a tool message without tool_call_id"


def _assistant(message: dict[str, Any], *, accept_reasoning: bool, strict_arguments: bool) -> Iterator[str]:
    content, calls = message.get("content"), message.get("tool_calls")
    reasoned = accept_reasoning and isinstance(content, str) and any(message.get(key) for key in REASONING_KEYS)
    if not content and not calls and not reasoned and not message.get("refusal"):
        yield "an empty assistant message: neither content nor tool_calls"
    if content is not None and not isinstance(content, str | list):
        yield "content: a string or a list of parts is wanted"
    if "tool_calls" not in message:
        return
    if not isinstance(calls, list) or not calls:
        yield "tool_calls: a non-empty list is wanted"
        return
    for index, each in enumerate(calls):
        yield from (f"tool_calls[{index}]: {problem}" for problem in _call(each, strict_arguments))


def _call(each: Any, strict_arguments: bool) -> Iterator[str]:
    function = each.get("function") if isinstance(each, dict) else None
    if not isinstance(function, dict) or each.get("type") != "function":
        yield "a call of type function is wanted"
        return
    yield from _keys(each, frozenset({"id", "type", "function"}))
    yield from _keys(function, frozenset({"name", "arguments"}))
    if not isinstance(each.get("id"), str) or not each["id"]:
        yield "a non-empty id is wanted"
    if not NAME.fullmatch(str(function.get("name", ""))):
        yield f"illegal name {function.get('name')!r}"
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        yield "arguments: a string is wanted"
    elif strict_arguments and not _is_object(arguments):
        yield f"arguments are not a JSON object: {arguments[:60]!r}"


def _pairing(messages: list[dict[str, Any]]) -> Iterator[str]:
    opened: dict[str, int] = {}
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            if opened.pop(str(message.get("tool_call_id")), None) is None:
                name = message.get("tool_call_id")
                yield f"messages[{index}]: no preceding call {name!r} waits for this tool message"
            continue
        yield from _unanswered(opened)
        opened = {}
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        for each in calls if isinstance(calls, list) else []:
            name = str(each.get("id")) if isinstance(each, dict) else ""
            if name in seen:
                yield f"messages[{index}]: the call id {name} was used before"
            seen.add(name)
            opened[name] = index
    yield from _unanswered(opened)


def _unanswered(opened: dict[str, int]) -> Iterator[str]:
    yield from (f"messages[{index}]: the call {name} has no tool message" for name, index in opened.items())


def _parts(parts: list[Any], *, images: bool) -> Iterator[str]:
    if not parts:
        yield "content: an empty list of parts"
    for index, part in enumerate(parts):
        yield from (f"content[{index}]: {problem}" for problem in _part(part, images=images))


def _part(part: Any, *, images: bool) -> Iterator[str]:
    match part:
        case {"type": "text", "text": str(text)}:
            yield from _keys(part, frozenset({"type", "text"}))
            if not text:
                yield "an empty text part"
        case {"type": "image_url", "image_url": {"url": str(url)} as image} if images:
            yield from _keys(part, frozenset({"type", "image_url"}))
            yield from _keys(image, frozenset({"url", "detail"}))
            yield from _image(url)
        case _:
            yield f"not a part for this role: {str(part)[:60]}"


def _image(url: str) -> Iterator[str]:
    if url.startswith(("http://", "https://")):
        return
    head = DATA_URL.match(url)
    if head is None:
        yield f"neither an address nor a base64 data URL: {url[:40]!r}"
        return
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
    except binascii.Error as error:
        yield f"broken base64: {error}"
        return
    declared, found = head.group(1).lower(), media_type(data)
    if declared != found:
        yield f"the data URL says {declared}, the bytes are {found}"


def media_type(data: bytes) -> str:
    """The image type that the first bytes tell."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return "unknown"


def _keys(value: dict[str, Any], known: frozenset[str], *, may_be_null: str = "") -> Iterator[str]:
    for key, member in value.items():
        if key not in known:
            yield f"unknown key {key}"
        if member is None and key != may_be_null:
            yield f"{key} is null"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False

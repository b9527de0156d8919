"""What the strict history check refuses, one reason a row, and the requests that must pass."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest

from . import check_request

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8)).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff" + bytes(8)).decode()
GIF = base64.b64encode(b"GIF89a" + bytes(8)).decode()
WEBP = base64.b64encode(b"RIFF....WEBP").decode()

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "bash", "description": "d", "parameters": {"default": None}}}


def calls(*ids: str, arguments: Any = "{}", content: Any = None, **more: Any) -> dict[str, Any]:
    rows = [{"id": each, "type": "function", "function": {"name": "bash", "arguments": arguments}} for each in ids]
    return {"role": "assistant", "content": content, "tool_calls": rows} | more


def result(name: str, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": content}


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages or [USER])} | more


def user(*parts: Any) -> dict[str, Any]:
    return body({"role": "user", "content": list(parts)})


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url} | more}


VALID: dict[str, dict[str, Any]] = {
    "smallest": body(),
    "a whole conversation": body(
        SYSTEM, USER, calls("a", "b"), result("b"), result("a", ""), calls("c", content=""), result("c"), ANSWER, USER
    ),
    "developer message": body({"role": "developer", "content": "x", "name": "n"}, USER),
    "every option": body(
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "bash"}},
        parallel_tool_calls=False,
        stream=True,
        stream_options={"include_usage": True},
        reasoning_effort="low",
        response_format={"type": "json_object"},
        max_completion_tokens=9,
        temperature=0.0,
        stop=["x"],
    ),
    "images": user(
        {"type": "text", "text": "look"},
        image(f"data:image/png;base64,{PNG}", detail="low"),
        image(f"data:image/jpeg;base64,{JPEG}"),
        image(f"data:image/gif;base64,{GIF}"),
        image(f"data:image/webp;base64,{WEBP}"),
        image("https://example.com/a.png"),
    ),
    "text parts of a result": body(USER, calls("a"), result("a", [{"type": "text", "text": "x"}])),
    "a refusal": body(USER, {"role": "assistant", "content": "", "refusal": "no"}),
}


@pytest.mark.parametrize("name", VALID)
def test_valid(name: str):
    before = copy.deepcopy(VALID[name])
    assert check_request(VALID[name]) == []
    assert VALID[name] == before


REFUSED: dict[str, tuple[Any, list[str]]] = {
    "not an object": ([], ["the body is not a JSON object"]),
    "no messages": ({"model": "m"}, ["messages: a non-empty list of objects is wanted"]),
    "empty messages": ({"model": "m", "messages": []}, ["messages: a non-empty list of objects is wanted"]),
    "no model": ({"messages": [USER]}, ["model: a non-empty string is wanted"]),
    # top level
    "unknown key": (body(thinking={}), ["unknown key thinking"]),
    "null value": (body(temperature=None), ["temperature is null"]),
    "stream options alone": (body(stream_options={}), ["stream_options without stream"]),
    "two limits": (
        body(max_tokens=1, max_completion_tokens=1),
        ["max_tokens and max_completion_tokens exclude each other"],
    ),
    # tools
    "tools empty": (body(tools=[]), ["tools: a non-empty list is wanted"]),
    "tools null": (body(tools=None), ["tools is null", "tools: a non-empty list is wanted"]),
    "choice alone": (body(tool_choice="auto"), ["tool_choice without tools"]),
    "parallel alone": (body(parallel_tool_calls=True), ["parallel_tool_calls without tools"]),
    "choice of another": (
        body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "x"}}),
        ["tool_choice names x, which is not among the tools"],
    ),
    "choice unknown": (body(tools=[TOOL], tool_choice="any"), ["tool_choice any is unknown"]),
    "tool twice": (body(tools=[TOOL, TOOL]), ["tools: bash is offered 2 times"]),
    "tool without type": (body(tools=[{"name": "bash"}]), ["tools[0]: a function is wanted"]),
    "tool name": (
        body(tools=[{"type": "function", "function": {"name": "a.b", "parameters": []}}]),
        ["tools[0]: illegal name 'a.b'", "tools[0]: parameters are not an object"],
    ),
    "tool null": (
        body(tools=[{"type": "function", "function": {"name": "f", "description": None, "x": 1}}]),
        ["tools[0]: description is null", "tools[0]: unknown key x"],
    ),
    # order
    "two systems": (
        body(SYSTEM, {"role": "developer", "content": "x"}, USER),
        ["2 system messages"],
    ),
    "late system": (body(USER, SYSTEM), ["messages[1]: the system message is not the first"]),
    # messages
    "role": (body({"role": "function", "content": "x"}), ["messages[0]: unknown role 'function'"]),
    "message key": (body(USER | {"id": "x"}), ["messages[0]: unknown key id"]),
    "message null": (body(USER | {"name": None}), ["messages[0]: name is null"]),
    "user without content": (
        body({"role": "user"}),
        ["messages[0]: content: a string or a list of parts is wanted"],
    ),
    "user null content": (
        body({"role": "user", "content": None}),
        ["messages[0]: content is null", "messages[0]: content: a string or a list of parts is wanted"],
    ),
    "assistant null": (
        body(USER, {"role": "assistant", "content": None}),
        ["messages[1]: content is null", "messages[1]: an empty assistant message: neither content nor tool_calls"],
    ),
    "assistant empty": (
        body(USER, {"role": "assistant", "content": ""}),
        ["messages[1]: an empty assistant message: neither content nor tool_calls"],
    ),
    "assistant empty calls": (
        body(USER, ANSWER | {"tool_calls": []}),
        ["messages[1]: tool_calls: a non-empty list is wanted"],
    ),
    "assistant content type": (
        body(USER, {"role": "assistant", "content": 7}),
        ["messages[1]: content: a string or a list of parts is wanted"],
    ),
    "reasoning": (body(USER, ANSWER | {"reasoning_content": "x"}), ["messages[1]: unknown key reasoning_content"]),
    # calls
    "arguments object": (
        body(USER, calls("a", arguments={}), result("a")),
        ["messages[1]: tool_calls[0]: arguments: a string is wanted"],
    ),
    "arguments broken": (
        body(USER, calls("a", arguments='{"x"'), result("a")),
        ["messages[1]: tool_calls[0]: arguments are not a JSON object: '{\"x\"'"],
    ),
    "arguments list": (
        body(USER, calls("a", arguments="[]"), result("a")),
        ["messages[1]: tool_calls[0]: arguments are not a JSON object: '[]'"],
    ),
    "arguments empty": (
        body(USER, calls("a", arguments=""), result("a")),
        ["messages[1]: tool_calls[0]: arguments are not a JSON object: ''"],
    ),
    "call without type": (
        body(USER, {"role": "assistant", "content": "x", "tool_calls": [{"id": "a"}]}, result("a")),
        ["messages[1]: tool_calls[0]: a call of type function is wanted"],
    ),
    "call id empty": (
        body(USER, calls(""), result("")),
        ["messages[1]: tool_calls[0]: a non-empty id is wanted"],
    ),
    # pairing
    "result alone": (body(USER, result("a")), ["messages[1]: no preceding call 'a' waits for this tool message"]),
    "result twice": (
        body(USER, calls("a"), result("a"), result("a")),
        ["messages[3]: no preceding call 'a' waits for this tool message"],
    ),
    "result late": (
        body(USER, calls("a"), USER, result("a")),
        [
            "messages[1]: the call a has no tool message",
            "messages[3]: no preceding call 'a' waits for this tool message",
        ],
    ),
    "unanswered": (
        body(USER, calls("a", "b"), result("a")),
        ["messages[1]: the call b has no tool message"],
    ),
    "id twice in a message": (
        body(USER, calls("a", "a"), result("a")),
        ["messages[1]: the call id a was used before"],
    ),
    "id used again": (
        body(USER, calls("a"), result("a"), calls("a"), result("a")),
        ["messages[3]: the call id a was used before"],
    ),
    "result without id": (
        body(USER, {"role": "tool", "content": "x"}),
        [
            "messages[1]: a tool message without tool_call_id",
            "messages[1]: no preceding call None waits for this tool message",
        ],
    ),
    # parts
    "no parts": (user(), ["messages[0]: content: an empty list of parts"]),
    "empty part": (user({"type": "text", "text": ""}), ["messages[0]: content[0]: an empty text part"]),
    "strange part": (user({"type": "x"}), ["messages[0]: content[0]: not a part for this role: {'type': 'x'}"]),
    "image in a result": (
        body(USER, calls("a"), result("a", [image("https://x/y")])),
        [
            "messages[2]: content[0]: not a part for this role: "
            "{'type': 'image_url', 'image_url': {'url': 'https://x/y'}}"
        ],
    ),
    "media type": (
        user(image(f"data:image/png;base64,{JPEG}")),
        ["messages[0]: content[0]: the data URL says image/png, the bytes are image/jpeg"],
    ),
    "not an image": (
        user(image("data:image/png;base64,AAAA")),
        ["messages[0]: content[0]: the data URL says image/png, the bytes are unknown"],
    ),
    "base64": (
        user(image("data:image/png;base64,A")),
        [
            "messages[0]: content[0]: broken base64: Invalid base64-encoded string: number of data characters (1) "
            "cannot be 1 more than a multiple of 4"
        ],
    ),
    "image path": (
        user(image("/tmp/a.png")),
        ["messages[0]: content[0]: neither an address nor a base64 data URL: '/tmp/a.png'"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    request, problems = REFUSED[name]
    assert check_request(request) == problems


def test_switches():
    broken = body(USER, calls("a", arguments="{"), result("a"))
    assert check_request(broken, strict_arguments=False) == []
    assert check_request(body(thinking={}, top_k=3), extra_keys=("thinking", "top_k")) == []
    reasoned = body(USER, {"role": "assistant", "content": "", "reasoning_content": "hm"})
    assert check_request(reasoned, accept_reasoning=True) == []
    null = body(USER, {"role": "assistant", "content": None, "reasoning_content": "hm"})
    assert len(check_request(null, accept_reasoning=True)) == 2

"""What Converse refuses in a request body; a pure function, no transport.

Sources: the service model that boto3 ships (members, patterns), and refusals of the service (turns that do not
alternate, blank texts, results that are not the next turn, calls in the history without a tool configuration).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .openai_check import NAME, media_type

TOP_KEYS = frozenset(
    "messages system inferenceConfig toolConfig additionalModelRequestFields outputConfig requestMetadata".split()  # noqa: SIM905
)
INFERENCE_KEYS = frozenset({"maxTokens", "temperature", "topP", "stopSequences"})
CALL_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
CACHE_POINT = {"cachePoint": {"type": "default"}}
MOST_CACHE_POINTS = 4


def check_request(body: Any) -> list[str]:
    """Every reason to refuse this body, empty when it is valid."""
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    turns = body.get("messages")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        return ["messages: a non-empty list of objects is wanted"]
    return [*_top(body), *_tools(body), *_turns(turns), *_pairing(turns)]


def _top(body: dict[str, Any]) -> Iterator[str]:
    yield from (f"unknown key {key}" for key in body if key not in TOP_KEYS)
    inference = body.get("inferenceConfig", {})
    yield from (f"inferenceConfig: unknown key {key}" for key in inference if key not in INFERENCE_KEYS)
    if not 0 <= inference.get("temperature", 0) <= 1:
        yield "inferenceConfig.temperature: a value between 0 and 1 is wanted"
    if inference.get("maxTokens", 1) < 1:
        yield "inferenceConfig.maxTokens: at least 1 is wanted"
    for block in body.get("system", []):
        if block != CACHE_POINT and not str(block.get("text", "")):
            yield "system: a block without text"
    thinking = body.get("additionalModelRequestFields", {}).get("thinking", {})
    if thinking.get("type") == "enabled":
        if not 1024 <= thinking["budget_tokens"] < inference.get("maxTokens", 0):
            yield "thinking.budget_tokens: at least 1024 and less than maxTokens is wanted"
        if "temperature" in inference:
            yield "temperature may only be set to 1 when thinking is enabled"
    if str(body).count("'cachePoint'") > MOST_CACHE_POINTS:
        yield f"more than {MOST_CACHE_POINTS} cache points"


def _tools(body: dict[str, Any]) -> Iterator[str]:
    config = body.get("toolConfig")
    if config is None:
        if "'toolUse'" in str(body["messages"]) or "'toolResult'" in str(body["messages"]):
            yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        return
    tools = [tool for tool in config.get("tools", []) if tool != CACHE_POINT]
    if not tools:
        yield "toolConfig.tools: at least one tool is wanted"
    names: Counter[str] = Counter()
    for index, tool in enumerate(tools):
        spec = tool.get("toolSpec", {})
        names[spec.get("name", "")] += 1
        if not NAME.fullmatch(spec.get("name", "")):
            yield f"toolConfig.tools[{index}]: illegal name {spec.get('name')!r}"
        if "description" in spec and not spec["description"]:
            yield f"toolConfig.tools[{index}]: an empty description"
        if spec.get("inputSchema", {}).get("json", {}).get("type") != "object":
            yield f"toolConfig.tools[{index}]: inputSchema.json.type must be object"
    yield from (f"toolConfig: {name} is offered {count} times" for name, count in names.items() if count > 1)
    choice = config.get("toolChoice", {"auto": {}})
    if len(choice) != 1 or not choice.keys() <= {"auto", "any", "tool"}:
        yield f"toolConfig.toolChoice: unknown {choice}"


def _turns(turns: list[dict[str, Any]]) -> Iterator[str]:
    if turns[0].get("role") != "user":
        yield "A conversation must start with a user message."
    for index, turn in enumerate(turns):
        role, content = turn.get("role"), turn.get("content")
        if role not in ("user", "assistant"):
            yield f"messages[{index}]: unknown role {role!r}"
        if index and role == turns[index - 1].get("role"):
            yield f"messages[{index}]: A conversation must alternate between user and assistant roles."
        if not isinstance(content, list) or not content or content == [CACHE_POINT]:
            yield f"messages[{index}]: content is empty"
            continue
        for position, block in enumerate(content):
            for problem in _block(block, role, last=position == len(content) - 1):
                yield f"messages[{index}].content[{position}]: {problem}"


def _block(block: Any, role: Any, *, last: bool) -> Iterator[str]:
    match block:
        case {"text": str(text), **rest} if not rest:
            if not text.strip():
                yield "The text field in the ContentBlock object is blank."
        case {"image": {"format": kind, "source": {"bytes": data}}} if role == "user":
            yield from _image(kind, data)
        case {"toolUse": {"toolUseId": call_id, "name": name, "input": dict(), **rest}} if role == "assistant":
            if rest or not CALL_ID.fullmatch(call_id) or not NAME.fullmatch(name):
                yield f"an illegal call: {call_id!r} {name!r}"
        case {"toolResult": {"toolUseId": call_id, "content": list(content), **rest}} if role == "user":
            if rest.get("status", "error") not in ("success", "error") or not CALL_ID.fullmatch(call_id):
                yield f"an illegal result: {call_id!r}"
            if not content:
                yield "toolResult.content is empty"
            for inner in content:
                yield from _block(inner, "user", last=False)
        case {"reasoningContent": {"reasoningText": {"text": str(), "signature": str(signature)}}} if (
            role == "assistant"
        ):
            if last or not signature:
                yield "reasoning must be signed and followed by what it led to"
        case {"reasoningContent": {"redactedContent": str()}} if role == "assistant":
            pass
        case {"cachePoint": {"type": "default"}}:
            pass
        case _:
            yield f"not a block for this role: {str(block)[:80]}"


def _image(kind: Any, data: Any) -> Iterator[str]:
    try:
        found = media_type(base64.b64decode(data, validate=True))
    except (binascii.Error, TypeError) as error:
        yield f"broken base64: {error}"
        return
    if found != f"image/{kind}":
        yield f"the format says {kind}, the bytes are {found}"


def _pairing(turns: list[dict[str, Any]]) -> Iterator[str]:
    waiting: list[str] = []
    for index, turn in enumerate(turns):
        blocks = turn.get("content") or []
        results = [block["toolResult"]["toolUseId"] for block in blocks if "toolResult" in block]
        if sorted(results) != sorted(waiting):
            yield f"messages[{index}]: Expected toolResult blocks for the Ids: {waiting}, but found: {results}"
        elif results and "toolResult" not in blocks[0]:
            yield f"messages[{index}]: toolResult blocks must come first"
        waiting = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        if len(set(waiting)) != len(waiting):
            yield f"messages[{index}]: the same toolUseId twice"
    if waiting:
        yield f"Expected toolResult blocks for the Ids: {waiting}"

"""Gemini's own wire: a `Reply` as `GenerateContentResponse` objects, and what a strict server refuses."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections.abc import Iterator
from typing import Any

from .behaviours import Call, InBand, Reply
from .openai_chat import cut, usage_of
from .openai_check import NAME
from .record import Request
from .render import Dialect, Event

REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
STATES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
TOP_KEYS = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent"}
)
GENERATION_KEYS = frozenset(
    {
        "temperature", "topP", "topK", "candidateCount", "maxOutputTokens", "stopSequences", "responseMimeType",
        "responseSchema", "responseJsonSchema", "thinkingConfig", "seed", "presencePenalty", "frequencyPenalty",
    }
)  # fmt: skip
PART_KEYS = frozenset({"text", "thought", "thoughtSignature", "inlineData", "functionCall", "functionResponse"})
SEAL = "sig-"
STAND_IN = "skip_thought_signature_validator"


class Gemini(Dialect):
    """`signs` is the behaviour of generation 3: calls are signed, and an unsigned first call of a turn is refused."""

    def __init__(self, *, signs: bool = False) -> None:
        self.signs = signs

    def claims(self, request: Request) -> bool:
        return (
            request.method == "POST" and ":streamGenerateContent" in request.path
        ) or ":generateContent" in request.path

    def streams(self, request: Request) -> bool:
        return ":streamGenerateContent" in request.path and "alt=sse" in request.path

    def events(self, reply: Reply, request: Request) -> list[Event]:
        shells = [_shell(reply, request, parts) for parts in self._parts(reply, request)] or [
            _shell(reply, request, [])
        ]
        _finish(shells[-1], reply, request)
        return [Event(json.dumps(shell, ensure_ascii=False)) for shell in shells]

    def document(self, reply: Reply, request: Request) -> Any:
        shell = _shell(reply, request, list(itertools.chain.from_iterable(self._parts(reply, request))))
        _finish(shell, reply, request)
        return shell

    def error(self, code: int, message: str) -> Any:
        return {"error": {"code": code, "message": message or f"status {code}", "status": STATES.get(code, "UNKNOWN")}}

    def in_band(self, error: InBand) -> Event:
        code = error.code if isinstance(error.code, int) else 500
        return Event(json.dumps(self.error(code, error.message)))

    def check(self, body: Any) -> list[str]:
        return check_request(body, signs=self.signs)

    def routes(self, models: tuple[str, ...]) -> dict[str, Any]:
        rows = [
            {
                "name": f"models/{name}",
                "displayName": name.title(),
                "inputTokenLimit": 1_048_576,
                "outputTokenLimit": 65_536,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
            }
            for name in models
        ]
        embedding = {"name": "models/embedding-001", "supportedGenerationMethods": ["embedContent"]}
        return {"/v1beta/models": {"models": [*rows, embedding]}}

    def _parts(self, reply: Reply, request: Request) -> Iterator[list[dict[str, Any]]]:
        for piece in cut(reply.reasoning, reply.pieces):
            yield [{"text": piece, "thought": True}]
        pieces = reply.pieces if isinstance(reply.pieces, tuple) else cut(reply.text or "", reply.pieces)
        for piece in pieces:
            yield [{"text": piece}]
        for index, each in enumerate(reply.tool_calls):
            part: dict[str, Any] = {"functionCall": _call(each, request, index, named="id_none" not in reply.odd)}
            if self.signs and index == 0:
                part["thoughtSignature"] = sealed(each.name)
            yield [part]


def sealed(text: str) -> str:
    return base64.b64encode(f"{SEAL}{text}".encode()).decode()


def _call(each: Call, request: Request, index: int, *, named: bool) -> dict[str, Any]:
    call = {"name": each.name, "args": json.loads(each.arguments)}
    return {"id": each.id or f"fc-{request.number}-{index}", **call} if named else call


def _shell(reply: Reply, request: Request, parts: list[dict[str, Any]]) -> dict[str, Any]:
    model = request.path.partition("/models/")[2].partition(":")[0]
    content = {"role": "model", "parts": parts} if parts else {"role": "model"}
    return {
        "candidates": [{"content": content, "index": 0}],
        "modelVersion": reply.model or model,
        "responseId": f"resp-{request.number}",
    }


def _finish(shell: dict[str, Any], reply: Reply, request: Request) -> None:
    if reply.refusal:
        shell["promptFeedback"] = {"blockReason": reply.refusal}
        del shell["candidates"]
    elif reply.finish is not None:
        reason = "stop" if reply.finish == "auto" else reply.finish
        shell["candidates"][0]["finishReason"] = REASONS.get(reason, reason)
    if reply.usage_at != "absent":
        shell["usageMetadata"] = _usage(reply, request)


def _usage(reply: Reply, request: Request) -> dict[str, Any]:
    counted = usage_of(reply, request)
    thoughts = counted.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    usage = {
        "promptTokenCount": counted["prompt_tokens"],
        "candidatesTokenCount": counted["completion_tokens"] - thoughts,
        "totalTokenCount": counted["prompt_tokens"] + counted["completion_tokens"],
    }
    cached = counted.get("prompt_tokens_details", {}).get("cached_tokens")
    return (
        usage
        | ({"cachedContentTokenCount": cached} if cached else {})
        | ({"thoughtsTokenCount": thoughts} if thoughts else {})
    )


def check_request(body: Any, *, signs: bool = False) -> list[str]:
    """Every reason to refuse this body; sources: the API reference, and refusals of the service."""
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents:
        return ["GenerateContentRequest.contents: contents is not specified"]
    problems = [f'Unknown name "{name}": Cannot find field.' for name in body.keys() - TOP_KEYS]
    generation = body.get("generationConfig", {})
    problems += [f'Unknown name "{name}" at generation_config' for name in generation.keys() - GENERATION_KEYS]
    problems += _tools(body)
    for position, content in enumerate(contents):
        problems += [f"contents[{position}]: {each}" for each in _content(content)]
    return problems or [*_pairing(contents), *(_signatures(contents) if signs else ())]


def _tools(body: dict[str, Any]) -> Iterator[str]:
    declared = [each for tool in body.get("tools", []) for each in tool.get("functionDeclarations", [])]
    if "toolConfig" in body and not declared:
        yield "Function calling config is set without function_declarations."
    for each in declared:
        if not NAME.fullmatch(each.get("name", "")):
            yield f"Invalid function name: {each.get('name')!r}"
        schema = each.get("parametersJsonSchema") or each.get("parameters")
        if schema is not None and not schema.get("properties"):
            yield f"{each['name']}.parameters.properties: should be non-empty for OBJECT type"
    if isinstance(body.get("systemInstruction"), dict):
        yield from (f"systemInstruction: {each}" for each in _parts(body["systemInstruction"].get("parts")))


def _content(content: Any) -> Iterator[str]:
    if not isinstance(content, dict) or content.get("role") not in ("user", "model"):
        yield "Please use a valid role: user, model."
        return
    yield from _parts(content.get("parts"))


def _parts(parts: Any) -> Iterator[str]:
    if not isinstance(parts, list) or not parts:
        yield "parts must not be empty"
        return
    for part in parts:
        if unknown := part.keys() - PART_KEYS:
            yield f"Unknown name {sorted(unknown)}"
        data = part.keys() & {"text", "inlineData", "functionCall", "functionResponse"}
        if len(data) != 1:
            yield "required oneof field 'data' must have one initialized field"
        elif part.get("text") == "" and "thoughtSignature" not in part:
            yield "Unable to submit request because it must have a text parameter"
        if "inlineData" in part:
            yield from _image(part["inlineData"])


def _image(data: dict[str, Any]) -> Iterator[str]:
    try:
        base64.b64decode(data["data"], validate=True)
    except (binascii.Error, ValueError):
        yield "inlineData.data: Base64 decoding failed"
    if not str(data.get("mimeType", "")).startswith("image/"):
        yield "Unsupported MIME type"


def _pairing(contents: list[dict[str, Any]]) -> Iterator[str]:
    pending: list[dict[str, Any]] = []
    for content in contents:
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if pending or results:
            if len(results) != len(pending):
                yield (
                    "Please ensure that the number of function response parts is equal to the number of function call "
                    "parts of the function call turn."
                )
            elif [each["name"] for each in results] != [each["name"] for each in pending]:
                yield "function response names do not match the calls"
            elif any(
                call.get("id") != result.get("id")
                for call, result in zip(pending, results, strict=True)
                if "id" in result
            ):
                yield "function response ids do not match the calls"
            if any("functionResponse" not in part for part in content["parts"]):
                yield "function responses stand in a content of their own"
        pending = calls
    if pending:
        yield "the last function call turn is not answered"


def _signatures(contents: list[dict[str, Any]]) -> Iterator[str]:
    for content in contents:
        calls = [part for part in content["parts"] if "functionCall" in part]
        for part in calls[:1]:
            given, name = part.get("thoughtSignature"), part["functionCall"]["name"]
            if given not in (STAND_IN, sealed(name)):
                yield f"Function call is missing a thought_signature in functionCall parts: {name}"

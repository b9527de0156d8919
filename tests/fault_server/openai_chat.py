"""The OpenAI chat-completions wire: a `Reply` as a document or as chunks, with the deviations of real servers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .behaviours import Call, Reply, usage
from .openai_check import check_request
from .record import Request
from .render import Dialect, Event

CREATED = 1_700_000_000

ERROR_TYPES = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


@dataclass(frozen=True)
class OpenAIChat(Dialect):
    accept_reasoning: bool = False
    strict_arguments: bool = True
    extra_keys: frozenset[str] = frozenset()
    done: str | None = "[DONE]"

    def claims(self, request: Request) -> bool:
        return request.method == "POST" and request.path.partition("?")[0].endswith("/chat/completions")

    def streams(self, request: Request) -> bool:
        return isinstance(request.json, dict) and request.json.get("stream") is True

    def check(self, body: Any) -> list[str]:
        return check_request(
            body,
            accept_reasoning=self.accept_reasoning,
            strict_arguments=self.strict_arguments,
            extra_keys=self.extra_keys,
        )

    def error(self, code: int, message: str) -> Any:
        kind, name = ERROR_TYPES.get(code, ("server_error" if code >= 500 else "invalid_request_error", None))
        return {"error": {"message": message or f"status {code}", "type": kind, "param": None, "code": name}}

    def routes(self, models: tuple[str, ...]) -> dict[str, Any]:
        rows = [{"id": name, "object": "model", "created": CREATED, "owned_by": "test"} for name in models]
        return {"/v1/models": {"object": "list", "data": rows}}

    def document(self, reply: Reply, request: Request) -> Any:
        document = _shell(reply, request, "chat.completion")
        document["choices"] = [
            {"index": 0, "message": _message(reply, request), "logprobs": None, "finish_reason": finish_of(reply)}
        ]
        if reply.usage_at != "absent":
            document["usage"] = usage_of(reply, request)
        return document

    def events(self, reply: Reply, request: Request) -> list[Event]:
        if "message" in reply.odd:
            return [Event(_dump(self.document(reply, request)))]
        return [Event(_dump(chunk)) for chunk in _chunks(reply, request)]


def finish_of(reply: Reply) -> str | None:
    if reply.finish != "auto":
        return reply.finish
    if not reply.tool_calls or "finish_stop" in reply.odd:
        return "stop"
    return "function_call" if "function_call" in reply.odd else "tool_calls"


def _message(reply: Reply, request: Request) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _content(reply, reply.text)}
    if not reply.text and reply.tool_calls:
        message["content"] = None
    if reply.reasoning:
        message[reply.reasoning_field] = reply.reasoning
    message["refusal"] = reply.refusal
    calls = [_whole_call(reply, request, index) for index in range(len(reply.tool_calls))]
    if calls and "function_call" in reply.odd:
        message["function_call"] = calls[0]["function"]
    elif calls:
        message["tool_calls"] = calls
    return message


def _whole_call(reply: Reply, request: Request, index: int) -> dict[str, Any]:
    each = reply.tool_calls[index]
    arguments: Any = json.loads(each.arguments) if "arguments_object" in reply.odd else each.arguments
    whole: dict[str, Any] = {"type": "function", "function": {"name": each.name, "arguments": arguments}}
    if (name := _id(reply, request, index)) is not None:
        whole = {"id": name, **whole}
    return whole


def _chunks(reply: Reply, request: Request) -> Iterator[dict[str, Any]]:
    include_usage = (request.json.get("stream_options") or {}).get("include_usage") is True
    usage_at = reply.usage_at if reply.usage_at != "auto" else "trailer" if include_usage else "absent"
    counted = usage_of(reply, request)
    for choices in _leading_choices(reply):
        yield _shell(reply, request, "chat.completion.chunk") | {"choices": choices}
    for delta in _deltas(reply, request):
        chunk = _chunk(reply, request, delta, "" if "finish_empty" in reply.odd else None)
        yield chunk | ({"usage": counted} if usage_at == "every" else {})
    if (finish := finish_of(reply)) is not None:
        at_finish = usage_at in ("finish", "twice", "every")
        yield _chunk(reply, request, {}, finish) | ({"usage": counted} if at_finish else {})
    if usage_at in ("trailer", "twice"):
        yield _shell(reply, request, "chat.completion.chunk") | {"choices": [], "usage": counted}


def _leading_choices(reply: Reply) -> Iterator[Any]:
    if "choices_null" in reply.odd:
        yield None
    if "choices_empty" in reply.odd:
        yield []
    if "delta_missing" in reply.odd:
        yield [{"index": 0, "finish_reason": None}]


def _chunk(reply: Reply, request: Request, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    if "second_choice" in reply.odd and delta.get("content"):
        choices.append({"index": 1, "delta": {"content": "other"}, "logprobs": None, "finish_reason": None})
    return _shell(reply, request, "chat.completion.chunk") | {"choices": choices}


def _deltas(reply: Reply, request: Request) -> Iterator[dict[str, Any]]:
    role = {"role": "assistant"}
    if "role_only" in reply.odd:
        yield role
    elif "role_none" not in reply.odd:
        yield role | {"content": None if reply.tool_calls and not reply.text else ""}
    repeated = role if "role_every" in reply.odd else {}
    for piece in cut(reply.reasoning, reply.pieces):
        yield repeated | {reply.reasoning_field: piece}
    pieces = reply.pieces if isinstance(reply.pieces, tuple) else cut(reply.text or "", reply.pieces)
    for piece in pieces:
        yield repeated | {"content": _content(reply, piece)}
    if reply.refusal:
        yield repeated | {"refusal": reply.refusal}
    for fragment in _fragments(reply, request):
        if "function_call" in reply.odd:
            yield repeated | {"function_call": fragment["function"]}
        else:
            yield repeated | {"tool_calls": [fragment]}


def _fragments(reply: Reply, request: Request) -> Iterable[dict[str, Any]]:
    calls = [_call_fragments(reply, request, index, each) for index, each in enumerate(reply.tool_calls)]
    if "interleave" in reply.odd:
        rounds = itertools.zip_longest(*calls)
        return [fragment for fragments in rounds for fragment in fragments if fragment is not None]
    return itertools.chain.from_iterable(calls)


def _call_fragments(reply: Reply, request: Request, index: int, each: Call) -> Iterator[dict[str, Any]]:
    """As OpenAI streams a call: first id and name with empty arguments, then the arguments in pieces."""
    odd = reply.odd
    parts: list[Any] = ["", *cut(each.arguments, reply.pieces)]
    if "arguments_object" in odd:
        parts = [json.loads(each.arguments)]
    name = _id(reply, request, index)
    id_from = 1 if "id_later" in odd else 0
    for position, part in enumerate(parts):
        fragment: dict[str, Any] = _index(odd, index, position)
        if name is not None and (position == id_from or (position > id_from and "id_every" in odd)):
            fragment["id"] = name
        if position == 0:
            fragment["type"] = "function"
        named = {"name": each.name} if position == 0 or "name_every" in odd else {}
        yield fragment | {"function": named | {"arguments": part}}


def _index(odd: frozenset[str], index: int, position: int) -> dict[str, Any]:
    if "index_missing" in odd or ("index_first_only" in odd and position):
        return {}
    if "index_zero" in odd:
        return {"index": 0}
    index += "index_one_based" in odd
    return {"index": str(index) if "index_string" in odd else index}


def _id(reply: Reply, request: Request, index: int) -> str | None:
    if "id_none" in reply.odd:
        return None
    position = 0 if "id_duplicate" in reply.odd else index
    return reply.tool_calls[position].id or f"call_{request.number}_{position}"


def _content(reply: Reply, text: str | None) -> Any:
    return [{"type": "text", "text": text}] if "content_parts" in reply.odd else text


def cut(text: str, pieces: int | tuple[str, ...]) -> list[str]:
    size = pieces if isinstance(pieces, int) else 8
    return [text[at : at + size] for at in range(0, len(text), size)]


def usage_of(reply: Reply, request: Request) -> dict[str, Any]:
    if reply.usage is not None:
        return reply.usage
    written = (reply.text or "") + reply.reasoning + "".join(each.name + each.arguments for each in reply.tool_calls)
    return usage(max(1, len(request.body) // 4), max(1, len(written) // 4))


def _shell(reply: Reply, request: Request, kind: str) -> dict[str, Any]:
    asked = request.json.get("model") if isinstance(request.json, dict) else None
    return {
        "id": f"chatcmpl-{request.number}",
        "object": kind,
        "created": CREATED,
        "model": reply.model or asked or "test-model",
    }


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

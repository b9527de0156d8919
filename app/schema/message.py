"""Messages and their typed blocks: frozen values shared by delivery, storage and requests, with a JSON form.

There is no `tool` role: a tool result is a user-role message with one tool-result block; dialects map it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, assert_never, cast

Role = Literal["system", "user", "assistant"]
# JSON as it stands on a wire or in a file; the one place where a type says no more than that.
JSON = Any


@dataclass(frozen=True, slots=True)
class TextBlock:
    text: str


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """A picture: base64 `data`, `media_type` read from the bytes, size in pixels when known (0 = unknown)."""

    data: str
    media_type: str
    width: int = 0
    height: int = 0
    detail: Literal["auto", "low", "high"] = "auto"


@dataclass(frozen=True, slots=True)
class ReasoningBlock:
    """The model's thinking, kept apart from its answer; `signature` is a vendor's proof, replayed byte for byte."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallBlock:
    """`arguments` is the raw JSON text exactly as the model wrote it; it may be empty or invalid."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResultBlock:
    call_id: str
    content: tuple[Block, ...]
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))


@dataclass(frozen=True, slots=True)
class OpaqueBlock:
    """A block of a kind this version does not know, kept as its JSON text so that it survives a round trip."""

    kind: str
    raw: str


Block = TextBlock | ImageBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock | OpaqueBlock


@dataclass(frozen=True, slots=True)
class UserSource:
    """A human wrote it."""


@dataclass(frozen=True, slots=True)
class PluginSource:
    """A part of the program wrote it, named by `plugin`; `form` says how a front end may show it."""

    plugin: str
    form: str | None = None
    summary: str | None = None

    def __post_init__(self) -> None:
        if self.summary is not None and len(self.summary) > 120:
            object.__setattr__(self, "summary", self.summary[:119] + "…")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model wrote it. `replay_state` is adapter-private frozen JSON that only its own adapter may read."""

    provider: str
    model: str
    replay_state: JSON = None


@dataclass(frozen=True, slots=True)
class ToolSource:
    call_id: str


@dataclass(frozen=True, slots=True)
class OpaqueSource:
    kind: str
    raw: str


Source = UserSource | PluginSource | ModelSource | ToolSource | OpaqueSource


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. Never edited: a rewrite is a new value with the same `id`.

    `time` is seconds since the epoch. `wire` is where a dialect keeps this message's encoded bytes, so that a
    message is encoded once in its life; it is no part of the value.
    """

    id: str
    role: Role
    content: tuple[Block, ...]
    source: Source
    time: float = field(default=0.0, compare=False)
    wire: dict[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def reasoning(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, ReasoningBlock))

    @property
    def tool_calls(self) -> tuple[ToolCallBlock, ...]:
        return tuple(block for block in self.content if isinstance(block, ToolCallBlock))

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        return tuple(block for block in self.content if isinstance(block, ToolResultBlock))

    def replace(self, *, content: Iterable[Block] | None = None, source: Source | None = None) -> Message:
        """A rewritten copy that keeps id and time."""
        return Message(
            self.id,
            self.role,
            self.content if content is None else tuple(content),
            self.source if source is None else source,
            self.time,
        )


Content = str | Iterable[Block]


def create_message(role: Role, content: Content, source: Source) -> Message:
    """A new message with a fresh id (UUIDv4), detached from the caller's `content`. Empty text gives no block."""
    if isinstance(content, str):
        blocks: tuple[Block, ...] = (TextBlock(content),) if content else ()
    else:
        blocks = tuple(content)
    return Message(str(uuid.uuid4()), role, blocks, source, time.time())


def system_message(text: str) -> Message:
    return create_message("system", text, PluginSource("system"))


def user_message(content: Content, source: Source | None = None) -> Message:
    return create_message("user", content, source or UserSource())


def assistant_message(content: Content, *, provider: str, model: str, replay_state: JSON = None) -> Message:
    return create_message("assistant", content, ModelSource(provider, model, freeze_json(replay_state)))


def tool_result_message(call_id: str, content: Content, *, is_error: bool = False) -> Message:
    blocks: tuple[Block, ...] = (TextBlock(content),) if isinstance(content, str) else tuple(content)
    return create_message("user", (ToolResultBlock(call_id, blocks, is_error),), ToolSource(call_id))


def freeze_json(value: JSON) -> JSON:
    """A detached, read-only copy of a JSON value: mappings become read-only views, lists become tuples.

    Nesting may be of any depth; a value that contains itself raises `ValueError`. Anything that is neither mapping
    nor list comes back as the same object.
    """
    return _rebuild(value, MappingProxyType, tuple)


def thaw_json(value: JSON) -> JSON:
    """The plain dict/list form of a value made by `freeze_json`, detached from it."""
    return _rebuild(value, dict, list)


def _rebuild(
    value: JSON, make_object: Callable[[dict[str, JSON]], JSON], make_array: Callable[[list[JSON]], JSON]
) -> JSON:
    """Copy nested containers from the inside out, in a loop, so that depth costs heap and never the stack."""

    def close(container: JSON, copies: list[JSON]) -> JSON:
        if isinstance(container, Mapping):
            return make_object(dict(zip(map(str, cast("Mapping[Any, Any]", container)), copies, strict=True)))
        return make_array(copies)

    top: list[JSON] = []
    open_ids: set[int] = set()
    # One frame for each container between the top and the current place: itself, its items to come, copies so far.
    frames: list[tuple[JSON, Iterator[JSON], list[JSON]]] = [(None, iter((value,)), top)]
    while True:
        container, items, copies = frames[-1]
        for item in items:
            if not isinstance(item, Mapping | list | tuple):
                copies.append(item)
                continue
            inner = cast("Mapping[Any, JSON] | list[JSON] | tuple[JSON, ...]", item)
            if id(inner) in open_ids:
                raise ValueError("not a JSON value: a list or mapping contains itself")
            open_ids.add(id(inner))
            frames.append((inner, iter(inner.values() if isinstance(inner, Mapping) else inner), []))
            break
        else:
            frames.pop()
            open_ids.discard(id(container))
            if not frames:
                return top[0]
            frames[-1][2].append(close(container, copies))


def block_to_json(block: Block) -> dict[str, JSON]:
    match block:
        case TextBlock():
            return {"kind": "text", "text": block.text}
        case ImageBlock():
            return {
                "kind": "image",
                "data": block.data,
                "media_type": block.media_type,
                "width": block.width,
                "height": block.height,
                "detail": block.detail,
            }
        case ReasoningBlock():
            plain = {"kind": "reasoning", "text": block.text}
            return plain if block.signature is None else {**plain, "signature": block.signature}
        case ToolCallBlock():
            return {"kind": "tool-call", "id": block.id, "name": block.name, "arguments": block.arguments}
        case ToolResultBlock():
            return {
                "kind": "tool-result",
                "call_id": block.call_id,
                "content": [block_to_json(inner) for inner in block.content],
                "is_error": block.is_error,
            }
        case OpaqueBlock():
            return json.loads(block.raw)
        case _:
            assert_never(block)


def block_from_json(data: Mapping[str, JSON]) -> Block:
    """The block of a JSON object; an unknown `kind` becomes an `OpaqueBlock` that renders back identically."""
    match data.get("kind"):
        case "text":
            return TextBlock(data["text"])
        case "image":
            return ImageBlock(
                data["data"],
                data["media_type"],
                data.get("width", 0),
                data.get("height", 0),
                data.get("detail", "auto"),
            )
        case "reasoning":
            return ReasoningBlock(data["text"], data.get("signature"))
        case "tool-call":
            return ToolCallBlock(data["id"], data["name"], data["arguments"])
        case "tool-result":
            inner = tuple(block_from_json(item) for item in data["content"])
            return ToolResultBlock(data["call_id"], inner, data.get("is_error", False))
        case kind:
            return OpaqueBlock(str(kind), json.dumps(dict(data), ensure_ascii=False))


def source_to_json(source: Source) -> dict[str, JSON]:
    match source:
        case UserSource():
            return {"kind": "user"}
        case PluginSource():
            optional = {"form": source.form, "summary": source.summary}
            return {"kind": "plugin", "plugin": source.plugin} | {k: v for k, v in optional.items() if v is not None}
        case ModelSource():
            plain: dict[str, JSON] = {"kind": "model", "provider": source.provider, "model": source.model}
            if source.replay_state is not None:
                plain["replay_state"] = thaw_json(source.replay_state)
            return plain
        case ToolSource():
            return {"kind": "tool", "call_id": source.call_id}
        case OpaqueSource():
            return json.loads(source.raw)
        case _:
            assert_never(source)


def source_from_json(data: Mapping[str, JSON]) -> Source:
    match data.get("kind"):
        case "user":
            return UserSource()
        case "plugin":
            return PluginSource(data["plugin"], data.get("form"), data.get("summary"))
        case "model":
            return ModelSource(data["provider"], data["model"], freeze_json(data.get("replay_state")))
        case "tool":
            return ToolSource(data["call_id"])
        case kind:
            return OpaqueSource(str(kind), json.dumps(dict(data), ensure_ascii=False))


def message_to_json(message: Message) -> dict[str, JSON]:
    return {
        "id": message.id,
        "role": message.role,
        "content": [block_to_json(block) for block in message.content],
        "source": source_to_json(message.source),
        "time": message.time,
    }


def message_from_json(data: Mapping[str, JSON]) -> Message:
    """Import a message that already has an id; the id is kept. Raises `KeyError`/`ValueError` on damage."""
    try:
        return _message_from_json(data)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a message: {error}") from error


def _message_from_json(data: Mapping[str, JSON]) -> Message:
    role = data["role"]
    if role not in ("system", "user", "assistant"):
        raise ValueError(f"unknown role: {role!r}")
    blocks = tuple(block_from_json(item) for item in data["content"])
    return Message(str(data["id"]), role, blocks, source_from_json(data["source"]), float(data.get("time", 0.0)))

"""One model request and one model reply, as frozen values. Dialects turn them into bytes and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from app.schema.message import JSON, Message
from app.schema.stream import Finish
from app.schema.usage import Usage

ToolChoice = Literal["none", "auto", "required"]
Purpose = Literal["conversation", "plan", "summary", "compaction", "session-title"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told of a tool. `parameters` is a JSON Schema object; `wire` caches a dialect's bytes."""

    name: str
    description: str
    parameters: dict[str, JSON] = field(hash=False)
    wire: dict[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CallConfig:
    """The part of a request that is session state: route, model and sampling. None means: not sent.

    `provider` is the route an adapter is registered for. `stop=None` and `stop=()` are different values.
    """

    provider: str
    model: str
    reasoning_effort: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything a model is asked, once. `response_schema` is a JSON Schema that the answer must follow.

    An adapter that cannot express a field that is present raises `UNSUPPORTED_OPTION`; it never drops it silently.
    """

    config: CallConfig
    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    response_schema: JSON = None
    session_id: str | None = None
    purpose: Purpose = "conversation"


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A finished reply: the assistant message, what it cost, how it ended, and how many requests it took."""

    message: Message
    usage: Usage
    finish: Finish
    attempts: int = 1
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return self.message.text

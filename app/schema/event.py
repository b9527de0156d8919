"""The one event vocabulary: what happened in a run, as frozen values with a fixed JSON form.

Terminal, page, JSON lines, session log and traces are views of this stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import ClassVar, cast

from app.schema.message import JSON, ToolCallBlock, thaw_json
from app.schema.plan import Plan
from app.schema.usage import Usage

IN_PROCESS = {"json": False}
"""Marks a field that views inside the process may read and the JSON-lines contract does not have."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    type: ClassVar[str] = "run_started"
    task: str
    agent: str
    llm: JSON
    """{config, provider, model, local}"""
    session: str | None
    sandbox: str
    workspace: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    type: ClassVar[str] = "step_started"
    step: int
    agent: str = field(default="", metadata=IN_PROCESS)


@dataclass(frozen=True, slots=True)
class TextStreamed:
    """Visible text as it arrives; provisional until the reply of this `attempt` is finished."""

    type: ClassVar[str] = "text_delta"
    text: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ReasoningStreamed:
    type: ClassVar[str] = "reasoning_delta"
    text: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ModelReplied:
    type: ClassVar[str] = "model_replied"
    text: str
    tool_calls: tuple[ToolCallBlock, ...]
    finish: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Retrying:
    type: ClassVar[str] = "retrying"
    attempt: int
    delay_s: float
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    type: ClassVar[str] = "tool_started"
    call: str
    name: str
    arguments: JSON
    """The parsed object, or the raw text when it could not be parsed."""


@dataclass(frozen=True, slots=True)
class ToolFinished:
    type: ClassVar[str] = "tool_finished"
    call: str
    name: str
    ok: bool
    content: str
    seconds: float
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    type: ClassVar[str] = "approval_requested"
    call: str
    name: str
    arguments: JSON
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    type: ClassVar[str] = "notice"
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Compacted:
    type: ClassVar[str] = "compacted"
    before_tokens: int
    after_tokens: int


@dataclass(frozen=True, slots=True)
class PlanChanged:
    type: ClassVar[str] = "plan_changed"
    plan: Plan


@dataclass(frozen=True, slots=True)
class RunFinished:
    type: ClassVar[str] = "run_finished"
    stop_reason: str
    answer: str
    error: JSON
    """{code, message, hint} or None"""
    usage: Usage
    cost_usd: float | None
    steps: int
    requests: int
    session: str | None


Event = (
    RunStarted
    | StepStarted
    | TextStreamed
    | ReasoningStreamed
    | ModelReplied
    | Retrying
    | ToolStarted
    | ToolFinished
    | ApprovalRequested
    | Notice
    | Compacted
    | PlanChanged
    | RunFinished
)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event in its place: `seq` counts from 1 within the run, `time` is seconds since the epoch."""

    seq: int
    time: float
    run: str
    span: str
    parent: str | None
    event: Event

    def to_json(self) -> dict[str, JSON]:
        """The object of the JSON-lines contract."""
        head: dict[str, JSON] = {
            "type": self.event.type,
            "seq": self.seq,
            "time": datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "run": self.run,
            "span": self.span,
            "parent": self.parent,
        }
        shown = [item.name for item in fields(self.event) if item.metadata.get("json", True)]
        return head | {name: _plain(getattr(self.event, name)) for name in shown}


def _plain(value: object) -> JSON:
    match value:
        case Usage() | Plan():
            return value.to_json()
        case ToolCallBlock():
            return {"id": value.id, "name": value.name, "arguments": value.arguments}
        case tuple():
            return [_plain(item) for item in cast("tuple[object, ...]", value)]
        case _:
            return thaw_json(value)

"""What a session's rows come to after any end, also a kill in the middle. Rows in, values out; nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from app.memory.memory import Memory
from app.memory.packing import parse, unpack_message
from app.memory.session_store import EventRow
from app.schema.message import (
    JSON,
    Message,
    PluginSource,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
)
from app.schema.plan import STEP_STATUSES, Plan, PlanStep

ASKING = "ask_human"
"""The tool whose open call is a question that still waits for its answer."""

NOT_STARTED = "not started: the run was cut off before it. It is safe to make this call."
REPEATABLE = "cut off before it gave a result. It may safely be made again."
UNKNOWN = (
    "cut off before it gave a result; its outcome is unknown. Find out whether it had its effect before you go on. The"
    " same call is made again only with the user's word."
)


@dataclass(slots=True)
class Restored:
    """What a memory was given back. `closers` are results for calls that got none; they are not in the memory yet.

    `question` is a call of `ask_human` that still waits. `doubts` are calls with an effect that may have happened.
    """

    question: ToolCallBlock | None = None
    closers: tuple[Message, ...] = ()
    doubts: tuple[ToolCallBlock, ...] = ()
    damaged: list[int] = field(default_factory=list[int])

    @property
    def asked(self) -> str:
        """The words of the question that waits."""
        if self.question is None:
            return ""
        try:
            return str(cast("dict[str, Any]", parse(self.question.arguments))["question"])
        except (ValueError, KeyError, TypeError):
            return self.question.arguments


def restore(memory: Memory, events: Iterable[EventRow], thread: str = "", *, keep_question: bool = True) -> Restored:
    """Fill an empty memory from the rows of one thread. Repairing twice from the same rows gives the same.

    Without `keep_question` a question that waits is closed like any other call.
    """
    back = _Restoring(memory)
    for event in events:
        if event.thread == thread:
            back.take(event)
    return back.result(keep_question=keep_question)


class _Restoring:
    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.damaged: list[int] = []
        self._effects: dict[str, str] = {}
        self._calls: dict[str, ToolCallBlock] = {}
        self._doubts: dict[str, ToolCallBlock] = {}
        self._names: dict[str, str] = {}
        self._time = 0.0

    def take(self, event: EventRow) -> None:
        try:
            self._take(event)
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
            self.damaged.append(event.id)

    def _take(self, event: EventRow) -> None:
        self._time = event.time
        match event.kind:
            case "message":
                self._message(unpack_message(event.data, event.bodies))
            case "started":
                self._started(event.data["call"], event.data["effect"])
            case "created" | "run_started" | "run_finished" | "plan_changed":
                pass
            case kind:
                self.memory.replay(kind, event.data)

    def _message(self, message: Message) -> None:
        for result in message.tool_results:
            self._answered(message, self._names.get(result.call_id, result.call_id))
        stored = self.memory.add(self._renamed(message))
        # A log from elsewhere may use an id twice; the memory then renames the call, and its results follow it.
        for old, new in zip(message.tool_calls, stored.tool_calls, strict=True):
            self._names[old.id] = new.id
            self._calls[new.id] = new
            self._effects.pop(new.id, None)

    def _renamed(self, message: Message) -> Message:
        results = message.tool_results
        if all(self._names.get(result.call_id, result.call_id) == result.call_id for result in results):
            return message
        return message.replace(
            content=[
                ToolResultBlock(self._names.get(block.call_id, block.call_id), block.content, block.is_error)
                if isinstance(block, ToolResultBlock)
                else block
                for block in message.content
            ]
        )

    def _started(self, call_id: str, effect: str) -> None:
        call = self._calls.get(self._names.get(call_id, call_id))
        if call is None:
            return
        self._effects[call.id] = effect
        # It was made again, so somebody has given his word.
        self._doubts.pop(_same(call), None)

    def _answered(self, message: Message, call_id: str) -> None:
        call = self._calls.get(call_id)
        by_tool = isinstance(message.source, ToolSource)
        if call is not None and not by_tool and self._effects.get(call_id) == "once":
            self._doubts[_same(call)] = call

    def result(self, *, keep_question: bool) -> Restored:
        out = Restored(damaged=self.damaged)
        closers: list[Message] = []
        for call in self.memory.open_calls:
            effect = self._effects.get(call.id)
            if call.name == ASKING:
                if keep_question and out.question is None:
                    out.question = call
                    continue
                effect = None  # a question has no effect
            if effect == "once":
                self._doubts[_same(call)] = call
            closers.append(closing(call, effect, self._time))
        out.closers = tuple(closers)
        out.doubts = tuple(self._doubts.values())
        return out


def closing(call: ToolCallBlock, effect: str | None, time: float) -> Message:
    """The result of a call that was cut off: not started without an effect, else what may be done about it."""
    words = NOT_STARTED if effect is None else UNKNOWN if effect == "once" else REPEATABLE
    content = (ToolResultBlock(call.id, (TextBlock(f"{call.name}: {words}"),), is_error=True),)
    return Message(f"closed-{call.id}", "user", content, PluginSource("session", summary=words.split(":")[0]), time)


def _same(call: ToolCallBlock) -> str:
    return f"{call.name} {call.arguments}"


def last_plan(events: Iterable[EventRow]) -> Plan | None:
    """The newest plan of a flow's session; None without a readable one."""
    found: Plan | None = None
    for event in events:
        if event.kind == "plan_changed":
            try:
                found = plan_from_json(event.data["plan"])
            except (KeyError, ValueError, TypeError, AttributeError):
                continue
    return found


def plan_to_json(plan: Plan) -> dict[str, JSON]:
    """A plan with everything a resumed flow needs."""
    steps = [{**step.to_json(), "check": step.check} for step in plan.steps]
    return {"id": plan.id, "title": plan.title, "steps": steps}


def plan_from_json(data: Mapping[str, JSON]) -> Plan:
    """The plan of `plan_to_json`. Raises `KeyError`, `ValueError` or `TypeError` on damage."""
    steps: list[PlanStep] = []
    for step in data["steps"]:
        if step["status"] not in STEP_STATUSES:
            raise ValueError(f"unknown step status: {step['status']!r}")
        steps.append(
            PlanStep(
                id=str(step["id"]),
                text=str(step["text"]),
                agent=step["agent"],
                needs=tuple(map(str, step["needs"])),
                check=step.get("check"),
                status=step["status"],
                result=step["result"],
            )
        )
    return Plan(str(data["id"]), str(data["title"]), tuple(steps))

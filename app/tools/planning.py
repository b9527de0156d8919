"""`planning`: a model's plan as a value, and `parse_steps`, which reads steps in every form that models write."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, WithJsonSchema

from app.schema.errors import ToolError
from app.schema.message import JSON
from app.schema.plan import STEP_STATUSES, Plan, PlanStep, StepStatus
from app.schema.run import RunContext
from app.tools.arguments import read_arguments
from app.tools.base import Args, Effect, Tool, ToolOutput

_TEXT_KEYS = ("text", "description", "title", "step", "name", "task", "content")
_NEEDS_KEYS = ("needs", "need", "depends_on", "dependencies")
_STATUS_WORDS: dict[str, StepStatus] = {
    "pending": "not_started",
    "todo": "not_started",
    "started": "in_progress",
    "active": "in_progress",
    "done": "completed",
    "complete": "completed",
    "finished": "completed",
    "success": "completed",
    "error": "failed",
    "failure": "failed",
}
_NUMBERING = re.compile(
    r"^\s*(?:(?:step|步骤)\s*\d+\s*[.:：)、-]\s*|第\s*\d+\s*步[:：]?\s*|\d+\s*(?:[.)](?!\d)|[、:：])\s*|[-*•]\s+)", re.I
)
_CHECKBOX = re.compile(r"^\[(?:[ xX✓✗→!])?\]\s*")
_OWNER = re.compile(r"^\[([^\W\d][\w-]*)\]\s*(?=\S)")
_INLINE_NUMBER = re.compile(r"(?:(?<=\s)|^)(\d+)[.)]\s+")


def parse_steps(value: JSON) -> tuple[PlanStep, ...]:
    """The steps in a list, an object, JSON text, or numbered lines; a leading `[agent]` names who does a step.

    Ids are texts, "" where none was given (`Plan.create` numbers those). Raises `ToolError` for a step without text.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return _steps_of_text(value)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, JSON]", value)
        return parse_steps(mapping["steps"]) if "steps" in mapping else (_step_of_mapping(mapping),)
    if isinstance(value, list | tuple):
        steps = (_step(item) for item in cast("Sequence[JSON]", value))
        return tuple(step for step in steps if step is not None)
    return (PlanStep("", str(value)),)


def _steps_of_text(text: str) -> tuple[PlanStep, ...]:
    stripped = text.strip()
    if stripped[:1] in ("[", "{"):
        decoded = _json_or_none(stripped)
        if decoded is not None:
            return parse_steps(decoded)
    lines = [line for line in stripped.splitlines() if line.strip()]
    if len(lines) == 1:
        lines = _split_inline(lines[0])
    return parse_steps(lines)


def _json_or_none(text: str) -> JSON:
    try:
        # Read as one argument, so that the same repairs hold as for whole calls.
        values, _ = read_arguments(f'{{"steps": {text}}}', {"properties": {"steps": {}}})
    except ToolError:
        return None
    return values["steps"]


def _split_inline(line: str) -> list[str]:
    """The pieces of "1. first 2. second"; the line itself when it is not numbered from 1 upwards."""
    marks = list(_INLINE_NUMBER.finditer(line))
    numbers = [int(mark[1]) for mark in marks]
    if len(marks) < 2 or marks[0].start() != 0 or numbers != list(range(1, len(marks) + 1)):
        return [line]
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    return [line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]


def _step(item: JSON) -> PlanStep | None:
    if isinstance(item, Mapping):
        return _step_of_mapping(cast("Mapping[str, JSON]", item))
    text = item if isinstance(item, str) else "" if item is None else json.dumps(item, ensure_ascii=False)
    agent, text = _owner(_CHECKBOX.sub("", _NUMBERING.sub("", text, count=1)).strip())
    return PlanStep("", text, agent) if text else None


def _step_of_mapping(item: Mapping[str, JSON]) -> PlanStep:
    text = next((str(item[key]).strip() for key in _TEXT_KEYS if item.get(key) not in (None, "")), "")
    if not text:
        raise ToolError(
            f"a step has no text: {json.dumps(dict(item), ensure_ascii=False, default=str)[:200]}",
            hint="give each step as text, or as {text, agent, needs, check}",
            code="TOOL_ARGUMENTS",
        )
    led_by, led_text = _owner(text)
    agent = str(item.get("agent") or "").strip().strip("[]")
    named = agent if agent.lower() not in ("", "none", "null") else None
    status = _status(item.get("status"))
    return PlanStep(
        id=_id(item.get("id")),
        text=led_text,
        agent=named or led_by,
        needs=_needs(next((item[key] for key in _NEEDS_KEYS if item.get(key) is not None), None)),
        check=str(item["check"]) if item.get("check") else None,
        status=status if status in STEP_STATUSES else "not_started",
        result=str(item["result"]) if item.get("result") else None,
    )


def _owner(text: str) -> tuple[str | None, str]:
    led = _OWNER.match(text)
    return (led[1], text[led.end() :]) if led else (None, text)


def _id(value: JSON) -> str:
    return "" if value is None else str(value).strip()


def _needs(value: JSON) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = re.split(r"[,\s]+", value)
    items = cast("Sequence[JSON]", value) if isinstance(value, list | tuple) else (value,)
    return tuple(text for item in items if (text := _id(item)))


def _status(value: object) -> object:
    if not isinstance(value, str):
        return value
    word = re.sub(r"[\s-]+", "_", value.strip().lower())
    return _STATUS_WORDS.get(word, word)


def _command(value: object) -> object:
    return {"mark": "mark_step", "create_plan": "create", "update_plan": "update"}.get(str(value), value)


_STEP_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "agent": {"type": "string"},
        "needs": {"type": "array", "items": {"type": "string"}, "description": "numbers of steps it waits for"},
        "check": {"type": "string"},
    },
    "required": ["text"],
}


class PlanningArgs(Args):
    command: Annotated[Literal["get", "create", "update", "mark_step", "list"], BeforeValidator(_command)]
    title: str | None = None
    steps: Annotated[Any, WithJsonSchema({"type": "array", "items": _STEP_SCHEMA})] = None
    step: Annotated[str | None, WithJsonSchema({"type": "integer"}), Field(description="its number, from 1")] = None
    status: Annotated[StepStatus | None, BeforeValidator(_status)] = None
    note: Annotated[str | None, Field(description="what came out of the step")] = None


class Planning(Tool[PlanningArgs]):
    """Keeps the plans of one run; the newest is the current one, a value that every change replaces."""

    name = "planning"
    description = "Keep a plan: create it with title and steps, mark_step as you go, update to change steps."
    Arguments = PlanningArgs

    def __init__(self, plan: Plan | None = None) -> None:
        self._plans: list[Plan] = [plan] if plan else []

    @property
    def plan(self) -> Plan | None:
        return self._plans[-1] if self._plans else None

    def effect_of(self, args: PlanningArgs) -> Effect:
        # Plans live in this process: after a kill there is none that a repetition could spoil.
        return "read" if args.command in ("get", "list") else "idempotent"

    async def run(self, args: PlanningArgs, ctx: RunContext) -> ToolOutput:
        match args.command:
            case "get":
                return ToolOutput(self.plan.as_text(results=True) if self.plan else "There is no plan yet.")
            case "list":
                return ToolOutput(
                    "\n".join(plan.as_text().splitlines()[0] for plan in self._plans) or "There is no plan yet."
                )
            case "create":
                return self._create(args)
            case "update":
                return self._update(args)
            case "mark_step":
                return self._mark(args)

    def _create(self, args: PlanningArgs) -> ToolOutput:
        steps = parse_steps(args.steps)
        if not steps:
            raise ToolError("a plan needs steps", hint='for example steps: ["first step", "second step"]')
        self._plans.append(Plan.create((args.title or "").strip() or "Plan", steps))
        return self._changed()

    def _update(self, args: PlanningArgs) -> ToolOutput:
        plan = self._current()
        if args.title and args.title.strip():
            plan = replace(plan, title=args.title.strip())
        if args.steps is not None:
            steps = parse_steps(args.steps)
            if not steps:
                raise ToolError("an update cannot remove all steps")
            plan = replace(Plan.create(plan.title, carried_over(plan.steps, steps)), id=plan.id)
        self._plans[-1] = plan
        return self._changed()

    def _mark(self, args: PlanningArgs) -> ToolOutput:
        plan = self._current()
        if args.step is None:
            raise ToolError("step: is required for mark_step", hint=f"a number from 1 to {len(plan.steps)}")
        self._plans[-1] = plan.mark(_step_id(plan, args.step), args.status or "completed", args.note)
        return self._changed()

    def _current(self) -> Plan:
        if self.plan is None:
            raise ToolError("there is no plan yet", hint="make one with command create")
        return self.plan

    def _changed(self) -> ToolOutput:
        plan = self._current()
        return ToolOutput(plan.as_text(), plan=plan)


def _step_id(plan: Plan, step: str) -> str:
    """The id of the step that the model means: its number in the printed plan, else its id."""
    number = re.fullmatch(r"(?:step\s*)?#?(\d+)[.:]?", step.strip(), re.I)
    if number and 1 <= int(number[1]) <= len(plan.steps):
        return plan.steps[int(number[1]) - 1].id
    if any(known.id == step.strip() for known in plan.steps):
        return step.strip()
    raise ToolError(f"there is no step {step!r}", hint=f"steps are numbered from 1 to {len(plan.steps)}")


def carried_over(old: Sequence[PlanStep], new: Sequence[PlanStep]) -> tuple[PlanStep, ...]:
    """The new steps, each with what the old step it stands for had: status, result and whatever was not said anew."""
    matches = _matches(old, new)
    taken = {step.id or matches[place].id for place, step in enumerate(new) if step.id or place in matches}
    free = (number for number in map(str, itertools.count(len(old) + 1)) if number not in taken)
    renamed = {was.id: new[place].id or was.id for place, was in matches.items()}
    steps: list[PlanStep] = []
    for place, step in enumerate(new):
        was = matches.get(place)
        if was is None:
            steps.append(step if step.id else replace(step, id=next(free)))
            continue
        carried = PlanStep(
            id=step.id or was.id,
            text=step.text,
            agent=step.agent or was.agent,
            needs=step.needs or tuple(renamed.get(need, need) for need in was.needs),
            check=step.check or was.check,
            status=was.status if step.status == "not_started" else step.status,
            result=step.result or was.result,
        )
        steps.append(carried)
    return tuple(steps)


def _matches(old: Sequence[PlanStep], new: Sequence[PlanStep]) -> dict[int, PlanStep]:
    """Which old step each new one stands for: the one of the same text, else the one of the same id.

    Text goes first, because a model that inserts a step usually numbers all steps anew.
    """
    left = list(old)
    matches: dict[int, PlanStep] = {}

    def pair(place: int, found: PlanStep | None) -> None:
        if found is not None:
            matches[place] = found
            left.remove(found)

    for place, step in enumerate(new):
        pair(place, next((candidate for candidate in left if candidate.text == step.text), None))
    for place, step in enumerate(new):
        if place not in matches and step.id:
            pair(place, next((candidate for candidate in left if candidate.id == step.id), None))
    return matches

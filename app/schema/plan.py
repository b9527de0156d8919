"""A plan as a value: steps with an owner, needs, status and result. Marking a step gives a new plan."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.schema.message import JSON

StepStatus = Literal["not_started", "in_progress", "completed", "failed", "blocked"]
STEP_STATUSES: tuple[StepStatus, ...] = ("not_started", "in_progress", "completed", "failed", "blocked")

MARKS: dict[StepStatus, str] = {
    "not_started": "[ ]",
    "in_progress": "[→]",
    "completed": "[✓]",
    "failed": "[✗]",
    "blocked": "[!]",
}


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step. `agent` names who does it (None = default), `needs` are ids of steps whose results it uses."""

    id: str
    text: str
    agent: str | None = None
    needs: tuple[str, ...] = ()
    check: str | None = None
    status: StepStatus = "not_started"
    result: str | None = None

    def to_json(self) -> dict[str, JSON]:
        return {
            "id": self.id,
            "text": self.text,
            "agent": self.agent,
            "needs": list(self.needs),
            "status": self.status,
            "result": self.result,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    id: str
    title: str
    steps: tuple[PlanStep, ...]

    @classmethod
    def create(cls, title: str, steps: Iterable[PlanStep]) -> Plan:
        """A new plan with a unique id; steps without an id get `1`, `2`, …, doubled ids are made unique."""
        taken: set[str] = set()
        numbered: list[PlanStep] = []
        for position, step in enumerate(steps, 1):
            base = step.id or str(position)
            name, n = base, 2
            while name in taken:
                name, n = f"{base}-{n}", n + 1
            taken.add(name)
            numbered.append(replace(step, id=name))
        return cls(f"plan-{uuid.uuid4().hex[:12]}", title, tuple(numbered))

    def step(self, step_id: str) -> PlanStep:
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    def ready(self) -> tuple[PlanStep, ...]:
        """The steps that may start now: not started, every known need completed, in plan order.

        A step without `needs` waits for nothing; order then comes from the caller taking the first one.
        """
        done = {step.id for step in self.steps if step.status == "completed"}
        known = {step.id for step in self.steps}
        return tuple(
            step
            for step in self.steps
            if step.status == "not_started" and all(need in done or need not in known for need in step.needs)
        )

    def mark(self, step_id: str, status: StepStatus, result: str | None = None) -> Plan:
        """A new plan in which one step has this status (and result, if given). `KeyError` on an unknown id."""
        self.step(step_id)
        steps = tuple(
            replace(step, status=status, result=step.result if result is None else result)
            if step.id == step_id
            else step
            for step in self.steps
        )
        return replace(self, steps=steps)

    def with_open_steps(self, steps: Sequence[PlanStep]) -> Plan:
        """The plan with its unfinished future replaced; completed and failed steps keep their place and result."""
        past = tuple(step for step in self.steps if step.status in ("completed", "failed"))
        renumbered = Plan.create(self.title, (*past, *steps))
        return replace(renumbered, id=self.id)

    @property
    def complete(self) -> bool:
        return all(step.status == "completed" for step in self.steps)

    def count(self, status: StepStatus) -> int:
        return sum(step.status == status for step in self.steps)

    def with_short_results(self, most: int) -> Plan:
        """The plan itself, or one whose results come to at most `most` characters, each cut to the same length."""
        results = [step.result for step in self.steps if step.result]
        if sum(map(len, results)) <= most:
            return self
        each = max(1, most // len(results))
        steps = [
            replace(step, result=f"{step.result[: each - 1]}…") if step.result and len(step.result) > each else step
            for step in self.steps
        ]
        return replace(self, steps=tuple(steps))

    def as_text(self, *, results: bool = False) -> str:
        """The plan for people and models: a title with progress, then one numbered line a step with its mark."""
        lines = [f"{self.title} ({self.count('completed')}/{len(self.steps)} completed)"]
        for number, step in enumerate(self.steps, 1):
            owner = f" [{step.agent}]" if step.agent else ""
            lines.append(f"{number}. {MARKS[step.status]}{owner} {step.text}")
            if results and step.result:
                lines.append(f"   result: {step.result}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, JSON]:
        return {"id": self.id, "title": self.title, "steps": [step.to_json() for step in self.steps]}

"""`PlannerAgent`: makes a plan, revises it after a failure, and reports from its results. It does none of the work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from app.llm.client import LLM
from app.memory.memory import Memory
from app.prompts import Prompts
from app.schema.errors import LLMError, ToolError
from app.schema.message import Message, tool_result_message, user_message
from app.schema.plan import Plan, PlanStep
from app.schema.request import ModelReply
from app.schema.run import RunContext
from app.tools.planning import Planning, parse_steps
from app.tools.toolbox import Toolbox

ATTEMPTS = 2
"""One question and one repair; then the task itself is the only step."""

STEPS_SCHEMA = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 5}},
    "required": ["steps"],
    "additionalProperties": False,
}


class PlannerAgent:
    """Asks its model for a plan through the `planning` tool; a plan is a value that the caller keeps."""

    def __init__(self, *, llm: LLM, prompts: Prompts, memory: Memory | None = None, name: str = "planner") -> None:
        self.name = name
        self.llm = llm
        self.memory = memory or Memory()
        self._prompts = prompts

    async def make_plan(self, task: str, agents: Mapping[str, str], ctx: RunContext) -> Plan:
        """A plan for `task`; `agents` maps a name to what that agent can do.

        A model that gives no usable plan is asked once more; then the plan has one step, the task, and a notice says so.
        Raises what the model layer raises (`LLMError`, `TokenLimitExceeded`).
        """
        question = self._prompts.render("planner/create", task=task)
        plan = await self._ask_for_plan(question, agents, ctx)
        if plan is None:
            ctx.notice("PLAN", "the planner gave no usable plan; the task is done as one step")
            plan = Plan.create(_title(task), [PlanStep("", task)])
        return _with_known_agents(plan, agents, ctx)

    async def revise(
        self, plan: Plan, failed: PlanStep, *, task: str, agents: Mapping[str, str], ctx: RunContext
    ) -> Plan | None:
        """The plan with another future after `failed` failed, or None when the model has no better idea.

        Completed and failed steps keep their place and result.
        """
        question = self._prompts.render(
            "planner/revise", task=task, plan=plan.as_text(results=True), step=failed.text, reason=failed.result or "no reason given"
        )
        revised = await self._ask_for_plan(question, agents, ctx)
        if revised is None:
            return None
        steps = [replace(step, id="", needs=()) for step in _with_known_agents(revised, agents, ctx).steps]
        return plan.with_open_steps(steps)

    async def summarise(self, plan: Plan, *, task: str, ctx: RunContext) -> str:
        """A report in the task's language, written from the results alone. Raises what the model layer raises."""
        question = self._prompts.render("planner/summarise", task=task, plan=plan.as_text(results=True))
        return await self.llm.ask(question, system=self._prompts.render("planner/summary"), ctx=ctx, purpose="summary")

    async def _ask_for_plan(self, question: str, agents: Mapping[str, str], ctx: RunContext) -> Plan | None:
        if self.llm.facts.small:
            return await self._ask_for_steps(question, ctx)
        system = self._prompts.render("planner/system", agents=dict(agents))
        toolbox = Toolbox(Planning())
        asked: list[Message] = [user_message(question)]
        for attempt in range(ATTEMPTS):
            try:
                reply = await self.llm.ask_tool(
                    tuple(asked), system=system, tools=toolbox.specs, tool_choice="required", ctx=ctx, purpose="plan"
                )
            except LLMError as error:
                if error.code not in ("INVALID_TOOL_CALL", "EMPTY_RESPONSE"):
                    raise
                continue
            plan, problem = await self._read(reply, toolbox, asked, ctx)
            if plan is not None:
                self.memory.add_all(asked)
                return plan
            if attempt + 1 < ATTEMPTS:
                asked.append(user_message(self._prompts.render("planner/repair", problem=problem)))
        return None

    async def _ask_for_steps(self, question: str, ctx: RunContext) -> Plan | None:
        """A plan from a very small model: it fills in a list of sentences, which is all it does reliably."""
        system = self._prompts.render("planner/system_small")
        text = await self.llm.ask(question, system=system, ctx=ctx, purpose="plan", response_schema=STEPS_SCHEMA)
        try:
            steps = parse_steps(json.loads(text))
        except (ValueError, ToolError):
            return None
        return Plan.create("Plan", steps) if steps else None

    async def _read(
        self, reply: ModelReply, toolbox: Toolbox, asked: list[Message], ctx: RunContext
    ) -> tuple[Plan | None, str]:
        """The plan of the first `create` call that works. Every call is answered, so that the history stays valid."""
        asked.append(reply.message)
        found: Plan | None = None
        problem = "no call of `planning`"
        for call in reply.message.tool_calls:
            outcome = await toolbox.call(call, ctx.child())
            asked.append(tool_result_message(call.id, outcome.block.content, is_error=not outcome.ok))
            if found is None and outcome.plan is not None and outcome.plan.steps:
                found = outcome.plan
            elif found is None:
                problem = outcome.block.text[:500]
        return found, problem


def _title(task: str) -> str:
    first = task.strip().splitlines()[0]
    return first if len(first) <= 80 else f"{first[:79]}…"


def _with_known_agents(plan: Plan, agents: Mapping[str, str], ctx: RunContext) -> Plan:
    """The plan with each step's agent as a known name, or none; an unknown name is told."""
    by_name = {_key(name): name for name in agents}

    def settle(step: PlanStep) -> PlanStep:
        if step.agent is None:
            return step
        known = by_name.get(_key(step.agent))
        if known is None:
            ctx.notice("PLAN", f"the plan names an unknown agent {step.agent!r}; the default agent does that step")
        return replace(step, agent=known)

    return replace(plan, steps=tuple(settle(step) for step in plan.steps))


def _key(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")



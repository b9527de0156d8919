"""`PlannerAgent`: makes a plan, revises it after a failure, and reports from its results. It does none of the work."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from app.agents.react import announce_model
from app.llm.client import LLM
from app.memory.memory import Memory
from app.prompts import Prompts
from app.schema.errors import LLMError, ToolError
from app.schema.message import JSON, Message, assistant_message, tool_result_message, user_message
from app.schema.plan import Plan, PlanStep
from app.schema.request import ModelReply, ToolChoice
from app.schema.run import RunContext
from app.tools.planning import Planning, parse_steps
from app.tools.toolbox import Toolbox

RESULTS_SHOWN = 20_000
"""Characters of all results together that a model is shown, however long the plan is."""

ATTEMPTS = 2
"""One question and one repair; then the task itself is the only step."""

STEPS_SCHEMA: JSON = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3}},
    "required": ["steps"],
    "additionalProperties": False,
}

_TAG = re.compile(r"\[([^\[\]]+)\]")

EXAMPLE = (
    "Write four colours to colours.txt, one a line. Then count the lines of colours.txt and write the count to n.txt.",
    [
        "Write four colours to colours.txt, one a line.",
        "Count the lines of colours.txt and write the count to n.txt.",
    ],
)


class PlannerAgent:
    """Asks its model for a plan through the `planning` tool; a plan is a value that the caller keeps.

    Each question stands alone; `memory` is a record of what was asked and answered.
    """

    def __init__(
        self,
        *,
        llm: LLM,
        prompts: Prompts,
        memory: Memory | None = None,
        name: str = "planner",
        why_llm: str = "",
    ) -> None:
        self.name = name
        self.llm = llm
        self.memory = Memory() if memory is None else memory
        self.why_llm = why_llm
        self._prompts = prompts

    async def make_plan(
        self, task: str, agents: Mapping[str, str], ctx: RunContext, *, side_by_side: bool = False
    ) -> Plan:
        """A plan for `task`; `agents` maps a name to what that agent can do; nothing in it has begun.

        A model that gives no usable plan is asked once more; then the plan has one step, the task, and a notice says
        so. With `side_by_side` the model is told that steps may run at once, so that it names their needs.
        Raises what the model layer raises (`LLMError`, `TokenLimitExceeded`).
        """
        announce_model(self.name, self.llm, self.why_llm, ctx)
        question = self._prompts.render("planner/create", task=task)
        plan, _ = await self._ask_for_plan(question, agents, ctx, tool_choice="required", side_by_side=side_by_side)
        if plan is None:
            ctx.notice("PLAN", "the planner gave no usable plan; the task is done as one step")
            return Plan.create(_title(task), [PlanStep("", task)])
        return replace(plan, steps=_settled(plan.steps, agents, ctx))

    async def revise(
        self,
        plan: Plan,
        failed: PlanStep,
        *,
        task: str,
        agents: Mapping[str, str],
        ctx: RunContext,
        side_by_side: bool = False,
    ) -> Plan | None:
        """The plan with another future after `failed` failed, or None when the model sees no other way.

        Completed and failed steps keep their place and result. A refusal in plain words is told as a notice.
        """
        question = self._prompts.render(
            "planner/revise",
            task=task,
            plan=plan.with_short_results(RESULTS_SHOWN).as_text(results=True),
            step=failed.text,
            reason=failed.result or "no reason given",
        )
        # Here a model must be free to say that nothing can help; forced to call, it would invent a step.
        revised, words = await self._ask_for_plan(question, agents, ctx, tool_choice="auto", side_by_side=side_by_side)
        if revised is None:
            ctx.notice("PLAN", f"the planner found no other way after the failure{f': {words}' if words else ''}")
            return None
        steps = _continuing(plan, _settled(revised.steps, agents, ctx))
        return plan.with_open_steps(steps) if steps else None

    async def summarise(self, plan: Plan, *, task: str, ctx: RunContext) -> str:
        """A report in the task's language, written from the results alone. Raises what the model layer raises."""
        results = plan.with_short_results(RESULTS_SHOWN).as_text(results=True)
        question = self._prompts.render("planner/summarise", task=task, plan=results)
        return await self.llm.ask(question, system=self._prompts.render("planner/summary"), ctx=ctx, purpose="summary")

    async def _ask_for_plan(
        self,
        question: str,
        agents: Mapping[str, str],
        ctx: RunContext,
        *,
        tool_choice: ToolChoice,
        side_by_side: bool,
    ) -> tuple[Plan | None, str]:
        """The plan, or None and the model's own words where it may answer in words."""
        if self.llm.facts.small:
            return await self._ask_for_steps(question, ctx), ""
        system = self._prompts.render("planner/system", agents=dict(agents), side_by_side=side_by_side)
        toolbox = Toolbox(Planning())
        asked: list[Message] = [self.memory.add(user_message(question))]
        for attempt in range(ATTEMPTS):
            try:
                reply = await self.llm.ask_tool(
                    tuple(asked), system=system, tools=toolbox.specs, tool_choice=tool_choice, ctx=ctx, purpose="plan"
                )
            except LLMError as error:
                if error.code not in ("INVALID_TOOL_CALL", "EMPTY_RESPONSE"):
                    raise
                continue
            plan, problem = await self._read(reply, toolbox, asked, ctx)
            if plan is not None:
                return plan, ""
            declined = tool_choice == "auto" and reply.finish.reason != "max-tokens" and not reply.message.tool_calls
            if declined and reply.text.strip():
                return None, reply.text.strip()
            if attempt + 1 < ATTEMPTS:
                repair = self._prompts.render("planner/repair", problem=problem)
                asked.append(self.memory.add(user_message(repair)))
        return None, ""

    async def _ask_for_steps(self, question: str, ctx: RunContext) -> Plan | None:
        """A plan from a very small model: it fills in a list of sentences, which is all it does reliably."""
        self.memory.add(user_message(question))
        system = self._prompts.render("planner/system_small")
        try:
            text = await self.llm.ask(
                (*self._example(), user_message(question)),
                system=system,
                ctx=ctx,
                purpose="plan",
                response_schema=STEPS_SCHEMA,
            )
        except LLMError as error:
            if error.code != "EMPTY_RESPONSE":
                raise
            return None
        self.memory.add(assistant_message(text, provider=self.llm.name, model=self.llm.settings.model))
        try:
            steps = parse_steps(json.loads(text))
        except (ValueError, ToolError):
            return None
        return Plan.create("Plan", steps) if steps else None

    def _example(self) -> tuple[Message, Message]:
        """One plan as it should be; without it such a model makes steps of opening and saving files."""
        task, steps = EXAMPLE
        answer = json.dumps({"steps": steps})
        return (
            user_message(self._prompts.render("planner/create", task=task)),
            assistant_message(answer, provider=self.llm.name, model=self.llm.settings.model),
        )

    async def _read(
        self, reply: ModelReply, toolbox: Toolbox, asked: list[Message], ctx: RunContext
    ) -> tuple[Plan | None, str]:
        """The plan as the reply's calls leave it, or what was wrong. Every call is answered; one may ask again."""
        problem = "it was cut by the output limit" if reply.finish.reason == "max-tokens" else "no call of `planning`"
        found: Plan | None = None
        message = self.memory.add(reply.message)
        asked.append(message)
        for call in message.tool_calls:
            outcome = await toolbox.call(call, ctx.child())
            result = tool_result_message(call.id, outcome.block.content, is_error=not outcome.ok)
            asked.append(self.memory.add(result))
            if outcome.plan is not None:
                found = outcome.plan
            elif found is None:
                problem = outcome.block.text[:500]
        return found, problem


def _title(task: str) -> str:
    first = task.strip().splitlines()[0]
    return first if len(first) <= 80 else f"{first[:79]}…"


def _settled(steps: Iterable[PlanStep], agents: Mapping[str, str], ctx: RunContext) -> tuple[PlanStep, ...]:
    """The steps with agents that exist, needs that can be met, and nothing done yet, whatever the model claims."""
    known = {_key(name): name for name in agents}
    fresh = [replace(step, agent=_owner(step, known, ctx), status="not_started", result=None) for step in steps]
    return _without_cycles(fresh, ctx)


def _owner(step: PlanStep, known: Mapping[str, str], ctx: RunContext) -> str | None:
    """The known agent that a step names in its field, else in the first brackets of its text that name one."""
    named = [step.agent] if step.agent else []
    for name in (*named, *_TAG.findall(step.text)):
        if _key(name) in known:
            return known[_key(name)]
    if step.agent:
        ctx.notice("PLAN", f"the plan names an unknown agent {step.agent!r}; the default agent does that step")
    return None


def _key(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _without_cycles(steps: Sequence[PlanStep], ctx: RunContext) -> tuple[PlanStep, ...]:
    """Steps that wait for each other in a circle would never start; those keep only needs that stand before them."""
    ids = {step.id for step in steps}
    reached: set[str] = set()
    while True:
        new = {step.id for step in steps if step.id not in reached and (ids & set(step.needs)) <= reached}
        if not new:
            break
        reached |= new
    if reached == ids:
        return tuple(steps)
    ctx.notice("PLAN", "steps of the plan wait for each other in a circle; they are done in the order of the plan")
    place = {step.id: number for number, step in enumerate(steps)}
    return tuple(
        step
        if step.id in reached
        else replace(step, needs=tuple(need for need in step.needs if place.get(need, -1) < place[step.id]))
        for step in steps
    )


def _continuing(plan: Plan, steps: Iterable[PlanStep]) -> list[PlanStep]:
    """New steps as the future of `plan`: without those it has completed, with ids that it does not use yet."""
    completed = {step.text for step in plan.steps if step.status == "completed"}
    new = [step for step in steps if step.text not in completed]
    taken = {step.id for step in plan.steps}
    free = (number for number in map(str, itertools.count(1)) if number not in taken)
    names = {step.id: next(free) for step in new}
    # A need that is no new step is one that was completed before.
    return [
        replace(step, id=names[step.id], needs=tuple(names[need] for need in step.needs if need in names))
        for step in new
    ]

"""`PlanningFlow`: a planner makes a plan, agents do its steps, failures are tried again and planned around.

The plan is a value; marks and results are put on copies. What a step came to is read from its agent's `RunResult`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from app.agents.planner import PlannerAgent
from app.agents.react import ReActAgent, finished
from app.llm.retry import unwrap_retry_error
from app.prompts import Prompts
from app.schema.errors import BudgetExceeded, DragomanError, LLMError, UsageError
from app.schema.event import PlanChanged, RunStarted
from app.schema.plan import MARKS, Plan, PlanStep, StepStatus
from app.schema.run import RunContext, RunError, RunResult, StopReason

RESULT_CHARS = 2_000
"""How much of a step's result is handed on to later steps and to the report."""

HALTING: frozenset[StopReason] = frozenset({"budget", "time", "cancelled"})
"""Ends of a step that end the whole flow; every other failure is tried again or planned around."""


@dataclass(frozen=True, slots=True)
class Member:
    """An agent of the team: what it can do, and how to make a fresh one for a step."""

    description: str
    make: Callable[[], ReActAgent]


class PlanningFlow:
    """Runs a task by a plan. Each step gets a fresh agent with the task, the earlier results and the step.

    `team` maps names to members; `default` does steps that name nobody. A failed step is tried `max_attempts` times,
    then the rest is planned anew once. `parallel` steps whose needs are met run side by side. The whole flow has
    `timeout_s` seconds unless the context has a nearer deadline.
    """

    def __init__(
        self,
        *,
        planner: PlannerAgent,
        team: Mapping[str, Member],
        prompts: Prompts,
        default: str | None = None,
        max_attempts: int = 2,
        max_replans: int = 1,
        parallel: int = 1,
        timeout_s: float = 3600.0,
        where: tuple[str, str] = ("none", ""),
    ) -> None:
        if not team:
            raise UsageError("a flow needs at least one agent")
        self.planner = planner
        self.team = dict(team)
        self.default = default or next(iter(team))
        self.max_attempts = max_attempts
        self.max_replans = max_replans
        self.parallel = max(1, parallel)
        self.timeout_s = timeout_s
        self._prompts = prompts
        self._where = where

    async def run(self, task: str, ctx: RunContext | None = None) -> RunResult:
        """Plan, work, report. Never raises for what a model, a tool or a limit did; `UsageError` for a blank task.

        Ends as `finished` only when every step is completed; otherwise the result says what is missing and why.
        """
        if not task.strip():
            raise UsageError("the task is empty", hint="say what to do")
        ctx = ctx or RunContext()
        limit = time.monotonic() + self.timeout_s
        ctx.deadline = limit if ctx.deadline is None else min(ctx.deadline, limit)
        ctx.emit(RunStarted(task, "flow", self.planner.llm.describe, ctx.session, *self._where))
        if not self.planner.llm.local:
            llm = self.planner.llm
            ctx.notice("CLOUD", f"the text of this run goes to {llm.vendor} ({llm.settings.model})", once=True)
        work = _Work(self, task, ctx)
        result = await work.to_the_end()
        ctx.emit(finished(result, ctx))
        return result


class _Work:
    """One run of the flow: the plan as it changes, and why it stops."""

    def __init__(self, flow: PlanningFlow, task: str, ctx: RunContext) -> None:
        self.flow = flow
        self.task = task
        self.ctx = ctx
        self.plan = Plan("", task, ())
        self.steps = 0
        self.replans = 0
        self.halted: RunResult | None = None
        self.agents_running = 0

    @property
    def agents(self) -> dict[str, str]:
        return {name: member.description for name, member in self.flow.team.items()}

    async def to_the_end(self) -> RunResult:
        reason: StopReason = "failed"
        error: RunError | None = None
        work = asyncio.ensure_future(self._plan_and_work())
        # Agents answer the stop request themselves, with valid memories; everything else is cut off here.
        forget = self.ctx.cancel.on_cancel(lambda: None if self.agents_running else work.cancel())
        try:
            async with asyncio.timeout_at(self.ctx.deadline):
                await work
        except TimeoutError:
            reason, error = "time", RunError("TIME", "the flow's time limit was reached", "raise --timeout or split the task")
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self.ctx.cancel.cancelled or (current is not None and current.cancelling()):
                raise
            reason, error = "cancelled", RunError("ABORTED", "the run was interrupted")
        except Exception as fault:
            inner = unwrap_retry_error(fault)
            if not isinstance(inner, DragomanError):
                raise
            reason, error = _reason_of(inner), RunError.of(inner)
        finally:
            forget()
        if error is None:
            reason, error = self._verdict()
        self._close_open_steps(reason)
        answer = await self._report(reason, error)
        return self._result(reason, answer, error)

    async def _plan_and_work(self) -> None:
        self._set(await self.flow.planner.make_plan(self.task, self.agents, self.ctx))
        while self.halted is None:
            # A plan that says nothing of needs is meant in order; only one that does may run side by side.
            width = self.flow.parallel if any(step.needs for step in self.plan.steps) else 1
            ready = self.plan.ready()[:width]
            if not ready:
                return
            await asyncio.gather(*(self._do(step) for step in ready))
            failed = next((step for step in self.plan.steps if step.status == "failed"), None)
            if failed is not None and self.halted is None and not await self._plan_around(failed):
                return

    async def _do(self, step: PlanStep) -> None:
        """One step to completed, failed or blocked, in at most `max_attempts` attempts."""
        self._mark(step, "in_progress")
        failure = ""
        for _ in range(self.flow.max_attempts):
            result = await self._attempt(step, failure)
            self.steps += result.steps
            text = _shorten(result.answer)
            if result.ok:
                self._mark(step, "completed", text)
                return
            failure = _why(result)
            if result.stop_reason in HALTING:
                self.halted = result
                self._mark(step, "blocked", failure)
                return
            if result.error is not None and result.error.code in ("AUTH", "QUOTA", "MISSING_CREDENTIAL", "UNKNOWN_MODEL"):
                break
        self._mark(step, "failed", failure)

    async def _attempt(self, step: PlanStep, failure: str) -> RunResult:
        done = [(other.text, other.result or "done") for other in self.plan.steps if other.status == "completed"]
        prompt = self.flow._prompts.render(  # pyright: ignore[reportPrivateUsage]
            "flow/step", task=self.task, step=step.text, check=step.check, results=done, failure=failure
        )
        agent = self.flow.team[step.agent or self.flow.default].make()
        self.agents_running += 1
        try:
            return await agent.run(prompt, self.ctx.child())
        finally:
            self.agents_running -= 1
            await agent.close()

    async def _plan_around(self, failed: PlanStep) -> bool:
        """Plan the future anew after a failure, as often as allowed; False when the flow has to stop here."""
        if self.replans >= self.flow.max_replans:
            return False
        self.replans += 1
        revised = await self.flow.planner.revise(self.plan, failed, task=self.task, agents=self.agents, ctx=self.ctx)
        if revised is None:
            self.ctx.notice("PLAN", "the planner found no other way after the failure")
            return False
        self.ctx.notice("PLAN", f"the plan was changed after a failed step: {failed.text}")
        # A failure that was planned around is history: the new steps replace it.
        self._set(replace(revised, steps=tuple(step for step in revised.steps if step.status != "failed")))
        return True

    def _verdict(self) -> tuple[StopReason, RunError | None]:
        if self.halted is not None:
            return self.halted.stop_reason, self.halted.error
        if self.plan.complete:
            return "finished", None
        missing = [step for step in self.plan.steps if step.status != "completed"]
        listed = "; ".join(f"{step.text} ({step.status}: {step.result or 'not reached'})" for step in missing)
        return "failed", RunError("PLAN_INCOMPLETE", f"{len(missing)} of {len(self.plan.steps)} steps are not done: {listed}")

    def _close_open_steps(self, reason: StopReason) -> None:
        """No step is left `in_progress`, and one that can no longer start is blocked."""
        changed = self.plan
        for step in self.plan.steps:
            if step.status == "in_progress":
                changed = changed.mark(step.id, "blocked", f"stopped: {reason}")
            elif step.status == "not_started":
                changed = changed.mark(step.id, "blocked", "not reached")
        if changed is not self.plan:
            self._set(changed)

    async def _report(self, reason: StopReason, error: RunError | None) -> str:
        """The answer: from the planner's model when all is well, else plainly from the plan; never invented."""
        if len(self.plan.steps) == 1 and reason == "finished":
            return self.plan.steps[0].result or "done"
        if reason == "finished" and not self.flow.planner.llm.facts.small:
            try:
                return await self.flow.planner.summarise(self.plan, task=self.task, ctx=self.ctx)
            except (LLMError, BudgetExceeded) as fault:
                self.ctx.notice("PLAN", f"the summary could not be written ({fault.message}); the results follow as they are")
        return honest_summary(self.plan, error)

    def _mark(self, step: PlanStep, status: StepStatus, result: str | None = None) -> None:
        self._set(self.plan.mark(step.id, status, result))

    def _set(self, plan: Plan) -> None:
        self.plan = plan
        self.ctx.emit(PlanChanged(plan))

    def _result(self, reason: StopReason, answer: str, error: RunError | None) -> RunResult:
        ledger = self.ctx.ledger
        cause = self.ctx.cancel.cause if reason == "cancelled" else None
        return RunResult(reason, answer, ledger.usage, error, self.steps, ledger.requests, ledger.cost_usd, cause)


def honest_summary(plan: Plan, error: RunError | None) -> str:
    """What was achieved and what was not, from the plan alone."""
    lines = [f"{plan.count('completed')} of {len(plan.steps)} steps are done."] if plan.steps else []
    for step in plan.steps:
        lines.append(f"{MARKS[step.status]} {step.text}" + (f": {step.result}" if step.result else ""))
    if error is not None and error.code != "PLAN_INCOMPLETE":
        lines.append(f"Stopped: {error.message}")
    return "\n".join(lines)


def _shorten(text: str) -> str:
    return text if len(text) <= RESULT_CHARS else f"{text[: RESULT_CHARS - 1]}…"


def _why(result: RunResult) -> str:
    reason = result.error.message if result.error else result.stop_reason
    said = _shorten(result.answer).strip()
    return f"{reason} (last words: {said})" if said and said not in reason else reason


def _reason_of(error: DragomanError) -> StopReason:
    if isinstance(error, BudgetExceeded):
        return "budget"
    return "context" if error.code == "CONTEXT_WINDOW_EXCEEDED" else "failed"

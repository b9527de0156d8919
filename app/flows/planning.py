"""`PlanningFlow`: a planner makes a plan, agents do its steps, failures are tried again and planned around.

The plan is a value; marks and results are put on copies. What a step came to is read from its agent's `RunResult`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tenacity import RetryError

from app.agents.planner import RESULTS_SHOWN, PlannerAgent
from app.agents.react import ReActAgent, finished, reason_of
from app.flows.base import Keeper
from app.llm.retry import unwrap_retry_error
from app.prompts import Prompts
from app.schema.errors import BudgetExceeded, DragomanError, LLMError, UsageError
from app.schema.event import PlanChanged, RunStarted
from app.schema.message import ImageBlock
from app.schema.plan import MARKS, Plan, PlanStep, StepStatus
from app.schema.run import RunContext, RunError, RunResult, StopReason

RESULT_CHARS = 2_000
"""How much of a step's result is handed on to later steps and to the report."""

HALTING: frozenset[StopReason] = frozenset({"budget", "time", "cancelled"})
"""Ends of a step that end the whole flow; every other failure is tried again or planned around."""

HALTING_CODES = frozenset(
    {"AUTH", "QUOTA", "MISSING_CREDENTIAL", "INVALID_CREDENTIAL", "UNKNOWN_MODEL", "ENDPOINT", "TLS", "CONFIG"}
)
"""Failures that only the user can mend; neither another attempt nor another plan gets past them."""


@dataclass(frozen=True, slots=True)
class Member:
    """An agent of the team: what it can do, and how to make a fresh one for a step."""

    description: str
    make: Callable[[], ReActAgent]


class PlanningFlow:
    """Runs a task by a plan. Each step gets a fresh agent with the task, the earlier results and the step.

    `team` maps names to members; `default` does steps that name nobody. A failed step is tried `max_attempts` times,
    then the rest is planned anew, `max_replans` times in a run. Up to `parallel` steps run side by side in a plan that
    says what its steps need; one that does not is done in order. The whole flow has `timeout_s` seconds unless the
    context has a nearer deadline. With a `plan` the flow goes on with it instead of making one: what is completed
    stays, everything else is done. A `keeper` writes down what the agents do.
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
        keeper: Keeper | None = None,
        plan: Plan | None = None,
    ) -> None:
        if not team:
            raise UsageError("a flow needs at least one agent")
        self.planner = planner
        self.team = dict(team)
        self.prompts = prompts
        self.default = default or next(iter(team))
        self.max_attempts = max(1, max_attempts)
        self.max_replans = max_replans
        self.parallel = max(1, parallel)
        self.timeout_s = timeout_s
        self.where = where
        self.keeper = keeper
        self.plan = plan

    async def run(self, task: str, ctx: RunContext | None = None, *, images: Iterable[ImageBlock] = ()) -> RunResult:
        """Plan, work, report. Never raises for what a model, a tool or a limit did; `UsageError` for a blank task.

        Ends as `finished` only when every step is completed; otherwise the result says what is missing and why.
        `images` are shown to the agent of every step.
        """
        if not task.strip():
            raise UsageError("the task is empty", hint="say what to do")
        ctx = ctx or RunContext()
        limit = time.monotonic() + self.timeout_s
        # A copy, so that a context which is used again does not keep this flow's limit.
        ctx = replace(ctx, deadline=limit if ctx.deadline is None else min(ctx.deadline, limit))
        if ctx.parent is None:
            ctx.emit(RunStarted(task, "flow", self.planner.llm.describe, ctx.session, *self.where))
        result = await _Work(self, task, tuple(images), ctx).to_the_end()
        if ctx.parent is None:
            ctx.emit(finished(result, ctx))
        return result


@dataclass(frozen=True, slots=True)
class _End:
    reason: StopReason
    error: RunError | None = None
    answer: str | None = None


_INTERRUPTED = _End("cancelled", RunError("ABORTED", "the run was interrupted"))


class _Work:
    """One run of the flow: the plan as it changes, and why it stops."""

    def __init__(self, flow: PlanningFlow, task: str, images: tuple[ImageBlock, ...], ctx: RunContext) -> None:
        self.flow = flow
        self.task = task
        self.images = images
        self.ctx = ctx
        self.plan = Plan("", task, ())
        self.by_needs = False
        self.width = 1
        self.steps = 0
        self.replans_left = flow.max_replans
        self.halted: RunResult | None = None
        self.agents_running = 0
        # What failed is begun anew; what was cut off is gone on with.
        before = flow.plan.steps if flow.plan is not None else ()
        self.failed_before = {step.id for step in before if step.status == "failed"}
        self.agents = {name: member.description for name, member in flow.team.items()}

    async def to_the_end(self) -> RunResult:
        end = await self._within_limits()
        self._close_open_steps(end.reason)
        answer = honest_summary(self.plan, end.error) if end.answer is None else end.answer
        ledger = self.ctx.ledger
        cause = self.ctx.cancel.cause if end.reason == "cancelled" else None
        return RunResult(
            end.reason, answer, ledger.usage, end.error, self.steps, ledger.requests, ledger.cost_usd, cause
        )

    async def _within_limits(self) -> _End:
        """Plan, work and report, under the time limit and the stop request, with errors turned into an end."""
        work = asyncio.ensure_future(self._plan_work_report())
        # Agents answer the stop request themselves, with valid memories; everything else is cut off here.
        forget = self.ctx.cancel.on_cancel(lambda: None if self.agents_running else work.cancel())
        limit = asyncio.timeout_at(self.ctx.deadline)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            if self.plan.steps and self.plan.complete:
                self.ctx.notice("PLAN", "the time limit came before the summary; the results follow as they are")
                return _End("finished")
            error = RunError("TIME", "the flow's time limit was reached", "raise --timeout or split the task")
            return _End("time", error)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self.ctx.cancel.cancelled or (current is not None and current.cancelling()):
                raise
            return _INTERRUPTED
        except (DragomanError, RetryError) as fault:
            inner = unwrap_retry_error(fault)
            if not isinstance(inner, DragomanError):
                raise
            return _End(reason_of(inner), RunError.of(inner))
        finally:
            forget()

    async def _plan_work_report(self) -> _End:
        planner, side_by_side = self.flow.planner, self.flow.parallel > 1
        if self.flow.plan is not None:
            self._adopt(_open_again(self.flow.plan))
        else:
            if self.flow.keeper is not None:
                await self.flow.keeper.settled()
            self._adopt(await planner.make_plan(self.task, self.agents, self.ctx, side_by_side=side_by_side))
        while True:
            await self._work_off()
            if self.ctx.cancel.cancelled:
                return _INTERRUPTED
            failed = next((step for step in self.plan.steps if step.status == "failed"), None)
            if failed is None or self.halted is not None or not self.replans_left:
                break
            self.replans_left -= 1
            revised = await planner.revise(
                self.plan, failed, task=self.task, agents=self.agents, ctx=self.ctx, side_by_side=side_by_side
            )
            if revised is None:
                self.replans_left = 0
                continue
            self.ctx.notice("PLAN", f"the plan was changed after a failed step: {failed.text}")
            # A failure that was planned around is history: the new steps replace it.
            self._adopt(replace(revised, steps=tuple(step for step in revised.steps if step.status != "failed")))
        return await self._report()

    def _adopt(self, plan: Plan) -> None:
        # A plan that says nothing of needs is meant in order; only one that does may run side by side.
        self.by_needs = any(step.needs for step in plan.steps if step.status == "not_started")
        self.width = self.flow.parallel if self.by_needs else 1
        self._set(plan)

    async def _work_off(self) -> None:
        """Do steps as their needs are met, until none can start."""
        try:
            async with asyncio.TaskGroup() as group:
                self._start_ready(group)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _start_ready(self, group: asyncio.TaskGroup) -> None:
        if self.halted is not None:
            return
        # After a failure the rest waits for another plan; when there will be none, what does not need it goes on.
        if self.plan.count("failed") and (self.replans_left or not self.by_needs):
            return
        for step in self.plan.ready()[: self.width - self.plan.count("in_progress")]:
            self._mark(step, "in_progress")
            group.create_task(self._do(step, group))

    async def _do(self, step: PlanStep, group: asyncio.TaskGroup) -> None:
        """One step to completed, failed or blocked, in at most `max_attempts` attempts; then what waited for it."""
        failure = ""
        for attempts_left in reversed(range(self.flow.max_attempts)):
            result = await self._attempt(step, failure)
            self.steps += result.steps
            if result.ok:
                self._mark(step, "completed", _shorten(result.answer))
                break
            failure = _why(result)
            if result.stop_reason in HALTING:
                self.halted = result
                self._mark(step, "blocked", failure)
                break
            if result.error is not None and result.error.code in HALTING_CODES:
                self.halted = result
                attempts_left = 0
            if not attempts_left:
                self._mark(step, "failed", failure)
                break
            self.ctx.notice("PLAN", f"{step.text}: {failure}; it is tried again")
        self._start_ready(group)

    async def _attempt(self, step: PlanStep, failure: str) -> RunResult:
        shown = self.plan.with_short_results(RESULTS_SHOWN).steps
        done = [(other.text, other.result or "done") for other in shown if other.status == "completed"]
        agent = self.flow.team[step.agent or self.flow.default].make()
        # A very small model that sees the whole task does the whole task in each step.
        prompt = self.flow.prompts.render(
            "flow/step_small" if agent.llm.facts.small else "flow/step",
            task=self.task,
            step=step.text,
            check=step.check,
            results=done,
            failure=failure,
        )
        self.agents_running += 1
        keeper = self.flow.keeper
        try:
            if keeper is not None and keeper.attach(
                agent, f"{self.plan.id}/{step.id}", fresh=step.id in self.failed_before
            ):
                return await agent.go_on(self.ctx.child())
            return await agent.run(prompt, self.ctx.child(), images=self.images)
        finally:
            self.agents_running -= 1
            await agent.close()

    async def _report(self) -> _End:
        """The end when nothing cut the work off. The planner's model reports when all is well; nothing is invented."""
        if self.halted is not None:
            return _End(self.halted.stop_reason, self.halted.error)
        steps = self.plan.steps
        missing = [step for step in steps if step.status != "completed"]
        if missing:
            listed = "; ".join(f"{step.text} ({step.result or 'not reached'})" for step in missing)
            message = f"{len(missing)} of {len(steps)} steps are not done: {listed}"
            hint = "say more precisely what is wanted, or use a stronger model"
            return _End("failed", RunError("PLAN_INCOMPLETE", message, hint))
        if len(steps) == 1:
            return _End("finished", answer=steps[0].result or "done")
        if self.flow.planner.llm.facts.small:
            # A very small model adds what is not there; the results themselves are the better report.
            return _End("finished")
        try:
            return _End("finished", answer=await self.flow.planner.summarise(self.plan, task=self.task, ctx=self.ctx))
        except (LLMError, BudgetExceeded) as fault:
            why = f"the summary could not be written ({fault.message}); the results follow as they are"
            self.ctx.notice("PLAN", why)
            return _End("finished")

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

    def _mark(self, step: PlanStep, status: StepStatus, result: str | None = None) -> None:
        self._set(self.plan.mark(step.id, status, result))

    def _set(self, plan: Plan) -> None:
        self.plan = plan
        self.ctx.emit(PlanChanged(plan))


def _open_again(plan: Plan) -> Plan:
    """The plan with everything that is not completed to be done, as after an end in the middle."""
    steps = (step if step.status == "completed" else replace(step, status="not_started") for step in plan.steps)
    return replace(plan, steps=tuple(steps))


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

"""`ReActAgent`: the only loop. Limits, the stop request, the end as a value; thinking and acting are for subclasses."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from tenacity import RetryError

from app.llm.client import LLM
from app.llm.retry import unwrap_retry_error
from app.memory.memory import Memory
from app.schema.errors import BudgetExceeded, DragomanError, SessionError, UsageError
from app.schema.event import RunFinished, RunStarted, StepStarted
from app.schema.message import (
    ImageBlock,
    Message,
    PluginSource,
    TextBlock,
    UserSource,
    tool_result_message,
    user_message,
)
from app.schema.run import RunContext, RunError, RunResult, StopReason

INTERRUPTED = "interrupted before it gave a result; its outcome is unknown"
"""The result of a call that was running when the run was cut off."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the loop ended, before it is dressed as a `RunResult`."""

    reason: StopReason
    answer: str = ""
    error: RunError | None = None


class ReActAgent(ABC):
    """Runs steps until one ends the run or a limit does. One agent serves one run at a time and remembers across runs.

    `where` is told in `run_started`: (sandbox name, workspace). `why_llm` says what chose the model; it is announced.
    """

    def __init__(
        self,
        name: str,
        *,
        llm: LLM,
        memory: Memory | None = None,
        max_steps: int = 30,
        description: str = "",
        where: tuple[str, str] = ("none", ""),
        why_llm: str = "",
    ) -> None:
        self.name = name
        self.description = description
        self.llm = llm
        self.memory = Memory() if memory is None else memory
        self.max_steps = max_steps
        self.where = where
        self.why_llm = why_llm
        self._steps = 0
        self._first = 0
        self._told_duplicates = 0

    async def run(self, task: str, ctx: RunContext | None = None, *, images: Iterable[ImageBlock] = ()) -> RunResult:
        """Work on `task` to its end. Never raises for what a model, a tool or a limit did: that is in the result.

        The result counts everything in the context's ledger; a nested context has one of its own.
        Raises `UsageError` for a blank task. Cancelling the surrounding asyncio task still cancels; a stop through
        `ctx.cancel` ends in a result. Either way the memory stays valid for the next run.
        """
        if not task.strip():
            raise UsageError("the task is empty", hint="say what to do")
        return await self._run(task, ctx or RunContext(), [user_message((TextBlock(task), *images))])

    async def go_on(self, ctx: RunContext | None = None) -> RunResult:
        """Take up the work where the memory ends, as after a kill; otherwise like `run`.

        A memory that ends with an answer gives that answer. Raises `UsageError` for an empty memory.
        """
        if not self.memory.messages:
            raise UsageError("there is nothing to go on with", hint="say what to do")
        tasks = [message.text for message in self.memory.messages if isinstance(message.source, UserSource)]
        return await self._run(tasks[-1] if tasks else "", ctx or RunContext(), [])

    async def _run(self, task: str, ctx: RunContext, messages: Iterable[Message]) -> RunResult:
        self.begin(ctx)
        self.memory.add_all(messages)
        try:
            if ctx.parent is None:
                ctx.emit(RunStarted(task, self.name, self.llm.describe, ctx.session, *self.where))
            announce_model(self.name, self.llm, self.why_llm, ctx)
            ending = await self._to_the_end(ctx)
        finally:
            self._close_open_calls()
        await self._keep(ctx)
        result = self._result(ending, ctx)
        if ctx.parent is None:
            ctx.emit(finished(result, ctx))
        return result

    def begin(self, ctx: RunContext) -> None:
        """Forget what belonged to the run before; called at the start of each."""
        self._steps = 0
        self._first = len(self.memory)

    @abstractmethod
    async def step(self, ctx: RunContext, *, last: bool) -> Ending | None:
        """Think once and act on it. `last` says that no further step will follow. Returns the end, if this was it."""

    async def close(self) -> None:  # noqa: B027 - most agents hold nothing
        """Free what the agent holds."""

    async def _to_the_end(self, ctx: RunContext) -> Ending:
        """The loop, under the time limit and the stop request, with errors turned into an ending."""
        work = asyncio.ensure_future(self._loop(ctx))
        forget = ctx.cancel.on_cancel(work.cancel)
        limit = asyncio.timeout_at(ctx.deadline)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            error = RunError("TIME", "the time limit was reached", "raise --timeout or split the task")
            return Ending("time", self._last_text(), error)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not ctx.cancel.cancelled or (current is not None and current.cancelling()):
                raise
            return Ending("cancelled", self._last_text(), RunError("ABORTED", "the run was interrupted"))
        except (DragomanError, RetryError) as error:
            inner = unwrap_retry_error(error)
            if not isinstance(inner, DragomanError):
                raise
            return Ending(reason_of(inner), self._last_text(), RunError.of(inner))
        finally:
            forget()

    async def _keep(self, ctx: RunContext) -> None:
        """Have the end on disk before it is told; an answer that could not be kept is an answer all the same."""
        if twice := self.memory.duplicates - self._told_duplicates:
            self._told_duplicates += twice
            ctx.notice("HISTORY_REPAIRED", f"{twice} messages were given to the memory twice; each is kept once")
        try:
            await self.memory.settled()
        except SessionError as error:
            ctx.notice("SESSION_NOT_KEPT", f"the end of this run is not stored: {error.message}", once=True)

    async def _loop(self, ctx: RunContext) -> Ending:
        last = self.memory.messages[-1]
        if last.role == "assistant" and last.text.strip() and not last.tool_calls:
            return Ending("answered", last.text.strip())
        for number in range(1, self.max_steps + 1):
            self._steps = number
            ctx.emit(StepStarted(number, self.name))
            ending = await self.step(ctx, last=number == self.max_steps)
            if ending is not None:
                return ending
        message = f"{self.name} did not finish within {self.max_steps} steps"
        error = RunError("STEP_LIMIT", message, "raise --max-steps or split the task")
        return Ending("step_limit", self._last_text(), error)

    def _result(self, ending: Ending, ctx: RunContext) -> RunResult:
        ledger = ctx.ledger
        cause = ctx.cancel.cause if ending.reason == "cancelled" else None
        return RunResult(
            ending.reason,
            ending.answer,
            ledger.usage,
            ending.error,
            self._steps,
            ledger.requests,
            ledger.cost_usd,
            cause,
        )

    def _close_open_calls(self) -> None:
        for call in self.memory.open_calls:
            message = tool_result_message(call.id, f"{call.name}: {INTERRUPTED}", is_error=True)
            self.memory.add(message.replace(source=PluginSource("agent")))

    def _last_text(self) -> str:
        """The last thing the model said in this run, for a result that was cut short."""
        said = (m.text for m in reversed(self.memory.messages[self._first :]) if m.role == "assistant")
        return next((text for text in said if text.strip()), "")


def announce_model(agent: str, llm: LLM, why: str, ctx: RunContext) -> None:
    """Say once in a run which model an agent uses and why, and where the text goes when it leaves the machine."""
    table = "[llm]" if llm.name == "default" else f"[llm.{llm.name}]"
    because = f" (because {why})" if why else ""
    model = llm.settings.model
    ctx.notice("LLM_CHOSEN", f"{agent} uses {table}: model {model} at {llm.vendor}{because}", once=True)
    llm.tell_where(ctx)


def reason_of(error: DragomanError) -> StopReason:
    """How a run ends that met this error."""
    if isinstance(error, BudgetExceeded):
        return "budget"
    return "context" if error.code == "CONTEXT_WINDOW_EXCEEDED" else "failed"


def finished(result: RunResult, ctx: RunContext) -> RunFinished:
    """The closing event of a run."""
    return RunFinished(
        result.stop_reason,
        result.answer,
        result.error.to_json() if result.error else None,
        result.usage,
        result.cost_usd,
        result.steps,
        result.requests,
        ctx.session,
    )

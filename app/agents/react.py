"""`ReActAgent`: the only loop. Limits, the stop request, the end as a value; thinking and acting are its subclasses'."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from app.llm.client import LLM
from app.llm.retry import unwrap_retry_error
from app.memory.memory import Memory
from app.schema.errors import BudgetExceeded, DragomanError, LLMError, UsageError
from app.schema.event import RunFinished, RunStarted, StepStarted
from app.schema.message import ImageBlock, Message, TextBlock, tool_result_message, user_message
from app.schema.run import RunContext, RunError, RunResult, StopReason
from app.schema.usage import Usage

INTERRUPTED = "interrupted before it gave a result; its outcome is unknown"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the loop ended, before it is dressed as a `RunResult`."""

    reason: StopReason
    answer: str = ""
    error: RunError | None = None


class ReActAgent(ABC):
    """Runs steps until one ends the run or a limit does. One agent serves one run at a time and remembers across runs.

    `where` is told in `run_started`: (sandbox name, workspace).
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
    ) -> None:
        self.name = name
        self.description = description
        self.llm = llm
        self.memory = memory or Memory()
        self.max_steps = max_steps
        self.where = where
        self._steps = 0
        self._usage = Usage()

    async def run(
        self, task: str, ctx: RunContext | None = None, *, images: Iterable[ImageBlock] = ()
    ) -> RunResult:
        """Work on `task` to its end. Never raises for what a model, a tool or a limit did: that is in the result.

        Raises `UsageError` for a blank task. Cancelling the surrounding task still cancels; a stop through
        `ctx.cancel` ends in a result. Either way the memory stays valid for the next run.
        """
        if not task.strip():
            raise UsageError("the task is empty", hint="say what to do")
        ctx = ctx or RunContext()
        is_root = ctx.parent is None
        if is_root:
            ctx.emit(RunStarted(task, self.name, self.llm.describe, ctx.session, *self.where))
            self._say_where_text_goes(ctx)
        self._steps, self._usage = 0, Usage()
        self.memory.add(user_message((TextBlock(task), *images)))
        try:
            ending = await self._to_the_end(ctx)
        finally:
            self._close_open_calls()
        result = RunResult(
            ending.reason,
            ending.answer,
            ctx.ledger.usage if is_root else self._usage,
            ending.error,
            self._steps,
            ctx.ledger.requests,
            ctx.ledger.cost_usd,
            ctx.cancel.cause if ending.reason == "cancelled" else None,
        )
        if is_root:
            ctx.emit(finished(result, ctx))
        return result

    @abstractmethod
    async def step(self, ctx: RunContext, *, last: bool) -> Ending | None:
        """Think once and act on it. `last` says that no further step will follow. Returns the end, if this was it."""

    async def close(self) -> None:
        """Free what the agent holds."""

    async def _to_the_end(self, ctx: RunContext) -> Ending:
        """The loop, under the time limit and the stop request, with errors turned into an ending."""
        work = asyncio.ensure_future(self._loop(ctx))
        forget = ctx.cancel.on_cancel(work.cancel)
        try:
            async with asyncio.timeout_at(ctx.deadline):
                return await work
        except TimeoutError:
            error = RunError("TIME", "the time limit was reached", "raise --timeout or split the task")
            return Ending("time", self._last_text(), error)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not ctx.cancel.cancelled or (current is not None and current.cancelling()):
                raise
            return Ending("cancelled", self._last_text(), RunError("ABORTED", "the run was interrupted"))
        except Exception as error:
            return _ending_of(error, self._last_text())
        finally:
            forget()

    async def _loop(self, ctx: RunContext) -> Ending:
        for number in range(1, self.max_steps + 1):
            self._steps = number
            ctx.emit(StepStarted(number, self.name))
            ending = await self.step(ctx, last=number == self.max_steps)
            if ending is not None:
                return ending
        error = RunError(
            "STEP_LIMIT", f"{self.name} did not finish within {self.max_steps} steps", "raise --max-steps or split the task"
        )
        return Ending("step_limit", self._last_text(), error)

    def _close_open_calls(self) -> None:
        for call in self.memory.open_calls:
            self.memory.add(tool_result_message(call.id, f"{call.name}: {INTERRUPTED}", is_error=True))

    def _last_text(self) -> str:
        """The last thing the model said in this run's memory, for a result that was cut short."""
        for message in reversed(self.memory.messages):
            if message.role == "assistant" and message.text.strip():
                return message.text
            if _is_task(message):
                break
        return ""

    def _say_where_text_goes(self, ctx: RunContext) -> None:
        if not self.llm.local:
            ctx.notice("CLOUD", f"the text of this run goes to {self.llm.vendor} ({self.llm.settings.model})", once=True)


def _is_task(message: Message) -> bool:
    return message.role == "user" and not message.tool_results and message.source.__class__.__name__ == "UserSource"


def _ending_of(error: Exception, answer: str) -> Ending:
    """The ending of an error that a run may meet; faults of the program itself are raised on."""
    inner = unwrap_retry_error(error)
    match inner:
        case BudgetExceeded():
            return Ending("budget", answer, RunError.of(inner))
        case LLMError(code="CONTEXT_WINDOW_EXCEEDED"):
            return Ending("context", answer, RunError.of(inner))
        case DragomanError():
            return Ending("failed", answer, RunError.of(inner))
        case _:
            raise error


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

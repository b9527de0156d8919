"""Runs the calls of one model reply: which side by side, in which order, and a result for each on every path."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.agents.react import INTERRUPTED
from app.schema.event import PlanChanged
from app.schema.message import TextBlock, ToolCallBlock, ToolResultBlock
from app.schema.run import RunContext
from app.tools.base import Effect, RunEnd
from app.tools.terminate import Terminate
from app.tools.toolbox import Starting, Toolbox

PARALLEL_CALLS = 10
CALLS_PER_REPLY = 32

LOOK_FIRST = "not run: an earlier call of this reply failed; look at it first"
ENDED_BEFORE = "not run: the run was ended before it"
NOT_STARTED = "not run: the run was interrupted before it"
TOO_MANY = f"not run: more than {CALLS_PER_REPLY} calls in one reply; repeat it if it is still needed"


class CallBatch:
    """The calls of one reply, run by these rules:

    - Neighbouring reads run side by side, at most `PARALLEL_CALLS` at once; every other call runs alone, in order.
    - A call that ends the run ends it at its place: what stood before it has run, what follows is not run.
    - `terminate` after a failed call of the same reply is not run: the model has not seen the failure yet.
    - Calls beyond `CALLS_PER_REPLY` are not run.

    `starting` is told of each call just before it has its effect. `results` has exactly one result a call, in the
    model's order, also when `run` was cancelled in the middle.
    """

    def __init__(
        self, calls: Sequence[ToolCallBlock], toolbox: Toolbox, ctx: RunContext, *, starting: Starting | None = None
    ) -> None:
        self.calls = tuple(calls)
        self.end: RunEnd | None = None
        self._toolbox = toolbox
        self._ctx = ctx
        self._told = starting
        self._gate = asyncio.Semaphore(PARALLEL_CALLS)
        self._started: set[str] = set()
        self._results: dict[str, ToolResultBlock] = {}

    async def run(self) -> None:
        for group in self._groups():
            if group[0].name == Terminate.name and any(result.is_error for result in self._results.values()):
                self._results[group[0].id] = error_result(group[0], LOOK_FIRST)
                continue
            if len(group) == 1:
                await self._one(group[0])
            else:
                await self._side_by_side(group)
            if self.end is not None:
                return

    @property
    def results(self) -> tuple[ToolResultBlock, ...]:
        return tuple(
            self._results.get(call.id) or error_result(call, self._why_not(position, call))
            for position, call in enumerate(self.calls)
        )

    def answered(self, call_id: str) -> bool:
        """Whether the toolbox answered this call itself; the others are answered by the loop."""
        return call_id in self._results

    async def _side_by_side(self, group: Sequence[ToolCallBlock]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for call in group:
                    tasks.create_task(self._one(call))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _one(self, call: ToolCallBlock) -> None:
        async with self._gate:
            outcome = await self._toolbox.call(call, self._ctx, starting=self._starting)
        self._results[call.id] = outcome.block
        self.end = self.end or outcome.ends_run
        if outcome.plan is not None:
            self._ctx.emit(PlanChanged(outcome.plan))

    async def _starting(self, call: ToolCallBlock, effect: Effect) -> None:
        if self._told is not None:
            await self._told(call, effect)
        self._started.add(call.id)

    def _groups(self) -> list[list[ToolCallBlock]]:
        groups: list[list[ToolCallBlock]] = []
        previous_reads = False
        for call in self.calls[:CALLS_PER_REPLY]:
            reads = len(self.calls) > 1 and self._toolbox.is_read(call)
            if reads and previous_reads:
                groups[-1].append(call)
            else:
                groups.append([call])
            previous_reads = reads
        return groups

    def _why_not(self, position: int, call: ToolCallBlock) -> str:
        if call.id in self._started:
            return INTERRUPTED
        if self.end is not None:
            return ENDED_BEFORE
        return TOO_MANY if position >= CALLS_PER_REPLY else NOT_STARTED


def error_result(call: ToolCallBlock, text: str) -> ToolResultBlock:
    """The result of a call that the loop answers itself."""
    return ToolResultBlock(call.id, (TextBlock(f"{call.name}: {text}"),), is_error=True)

"""`ToolCallAgent`: a step is one question to the model with tools on offer, and the calls it answers with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.agents.react import INTERRUPTED, Ending, ReActAgent
from app.agents.stuck import StuckGuard
from app.llm.client import LLM
from app.memory.memory import Memory
from app.schema.event import PlanChanged
from app.schema.message import PluginSource, ToolCallBlock, ToolResultBlock, tool_result_message, user_message
from app.schema.request import ModelReply, ToolChoice
from app.schema.run import RunContext, RunError
from app.tools.base import RunEnd
from app.tools.toolbox import Toolbox, ToolOutcome

PARALLEL_CALLS = 10
CALLS_PER_REPLY = 32

CUT = (
    "Your reply was cut by the output limit. Go on exactly where it stopped; if you were writing a tool call, make it"
    " smaller, for example write a long file in several pieces."
)
LAST_STEP = "This is your last step. Do not call tools any more: give your final answer now, and say what is unfinished."
CALL_NEEDED = "Answer with a tool call. When the task is done, call terminate."
ANSWER_NEEDED = "You thought, but gave no answer. Give the answer, or call a tool."
GOING_IN_CIRCLES = (
    "You have made the same call several times with the same result ({what}). Doing it again will not help:"
    " change the arguments, try another tool, or answer with what you have."
)
REFUSED = "not run: this exact call was made {count} times in a row with the same result. Do something else."


class ToolCallAgent(ReActAgent):
    """Asks, runs the calls, stores what happened; a plain text answer ends the run.

    `next_step` is a standing hint that rides at the tail of each request and is never stored. With tool choice
    `required` a reply without a call is reminded once and then fails the run.
    """

    def __init__(
        self,
        name: str,
        *,
        llm: LLM,
        toolbox: Toolbox,
        system: str = "",
        next_step: str = "",
        tool_choice: ToolChoice = "auto",
        memory: Memory | None = None,
        max_steps: int = 30,
        description: str = "",
        where: tuple[str, str] = ("none", ""),
    ) -> None:
        super().__init__(name, llm=llm, memory=memory, max_steps=max_steps, description=description, where=where)
        limit = llm.facts.max_tools
        self.toolbox = toolbox
        self.system = system
        self.next_step = next_step
        self.tool_choice: ToolChoice = "required" if llm.facts.tool_choice_required and toolbox.specs else tool_choice
        self._too_many = limit is not None and len(toolbox.specs) > limit
        self._begin()

    def _begin(self) -> None:
        self._guard = StuckGuard()
        self._hint = ""
        self._cuts = 0
        self._silences = 0
        self._parts: list[str] = []

    async def run(self, task, ctx=None, *, images=()):  # noqa: ANN001, ANN201  # pyright: ignore
        """See `ReActAgent.run`; what one run learned about going in circles does not burden the next."""
        self._begin()
        return await super().run(task, ctx, images=images)  # pyright: ignore[reportUnknownArgumentType]

    async def close(self) -> None:
        await self.toolbox.close()

    async def step(self, ctx: RunContext, *, last: bool) -> Ending | None:
        reply = await self.think(ctx, last=last)
        if reply.finish.reason == "max-tokens":
            return self._cut(reply, ctx)
        if not reply.message.tool_calls or self.tool_choice == "none":
            return self._text_only(reply)
        self._cuts = self._silences = 0
        self._parts.clear()
        message = self.memory.add(reply.message)
        return await self.act(message.tool_calls, ctx)

    async def think(self, ctx: RunContext, *, last: bool) -> ModelReply:
        """Ask the model what to do next. What is added for one request alone rides at its tail."""
        hints = [hint for hint in (self.next_step, self._hint, LAST_STEP if last and self.max_steps > 1 else "") if hint]
        self._hint = ""
        reply = await self.llm.ask_tool(
            self.memory.view(),
            system=self.system,
            tools=self.toolbox.specs,
            tool_choice=self.tool_choice,
            hint="\n".join(hints),
            ctx=ctx,
        )
        self._usage += reply.usage
        return reply

    async def act(self, calls: Sequence[ToolCallBlock], ctx: RunContext) -> Ending | None:
        """Run the calls of one reply: reads side by side, everything else alone and in order; results in order.

        Every call gets exactly one result in memory, also when this is cancelled in the middle.
        """
        outcomes: dict[str, ToolOutcome | ToolResultBlock] = {}
        try:
            end = await self._run_calls(calls, outcomes, ctx)
        finally:
            for call in calls:
                outcome = outcomes.get(call.id) or _error(call, INTERRUPTED)
                block = outcome.block if isinstance(outcome, ToolOutcome) else outcome
                self.memory.add(tool_result_message(block.call_id, block.content, is_error=block.is_error))
        if end is not None:
            return self._ended(end)
        return self._judge(calls, outcomes)

    async def _run_calls(
        self, calls: Sequence[ToolCallBlock], outcomes: dict[str, ToolOutcome | ToolResultBlock], ctx: RunContext
    ) -> RunEnd | None:
        if self._guard.refuses(calls):
            for call in calls:
                outcomes[call.id] = _error(call, REFUSED.format(count="many"))
            return None
        end: RunEnd | None = None
        all_ok = True
        for group in _groups(calls[:CALLS_PER_REPLY], self.toolbox):
            if end is not None:
                outcomes.update({call.id: _error(call, "not run: the run was ended before it") for call in group})
                continue
            if not all_ok and group[0].name == "terminate":
                # The model ended the run without seeing that an earlier call of the same reply failed.
                outcomes[group[0].id] = _error(group[0], "not run: an earlier call of this reply failed; look at it first")
                continue
            for call, outcome in zip(group, await self._side_by_side(group, outcomes, ctx), strict=True):
                outcomes[call.id] = outcome
                all_ok = all_ok and outcome.ok
                end = end or outcome.ends_run
                if outcome.plan is not None:
                    ctx.emit(PlanChanged(outcome.plan))
        for call in calls[CALLS_PER_REPLY:]:
            outcomes[call.id] = _error(call, f"not run: more than {CALLS_PER_REPLY} calls in one reply; repeat it if needed")
        return end

    async def _side_by_side(
        self, group: Sequence[ToolCallBlock], outcomes: dict[str, ToolOutcome | ToolResultBlock], ctx: RunContext
    ) -> list[ToolOutcome]:
        if len(group) == 1:
            return [await self.toolbox.call(group[0], ctx)]
        gate = asyncio.Semaphore(PARALLEL_CALLS)

        async def one(call: ToolCallBlock) -> ToolOutcome:
            async with gate:
                outcome = await self.toolbox.call(call, ctx)
            # Kept at once, so that a cancellation does not lose what its siblings have already brought back.
            outcomes[call.id] = outcome
            return outcome

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(call)) for call in group]
        return [task.result() for task in running]

    def _judge(self, calls: Sequence[ToolCallBlock], outcomes: dict[str, ToolOutcome | ToolResultBlock]) -> Ending | None:
        results = [_text_of(outcomes[call.id]) for call in calls if not _was_refused(outcomes[call.id])]
        if len(results) < len(calls):
            results = self._last_results
        self._last_results = results
        verdict = self._guard.record(calls, results, "")
        if verdict == "stuck":
            what = self._guard.last[:200]
            error = RunError("STUCK", f"{self.name} repeated itself without progress: {what}", "rephrase the task, or use a stronger model")
            return Ending("stuck", self._last_text(), error)
        if verdict == "hint":
            self._hint = GOING_IN_CIRCLES.format(what=self._guard.last[:200])
        return None

    _last_results: Sequence[str] = ()

    def _text_only(self, reply: ModelReply) -> Ending | None:
        """A reply without calls: the answer, unless the mode wants a call or there is no text at all."""
        text = reply.text.strip()
        wants_call = self.tool_choice == "required"
        if text and not wants_call:
            message = reply.message if not reply.message.tool_calls else _without_calls(reply)
            self.memory.add(message)
            return Ending("answered", "".join((*self._parts, reply.text)).strip())
        self._silences += 1
        if self._silences > 1:
            if text:
                self.memory.add(reply.message)
            code = "EMPTY_RESPONSE" if not text else "INVALID_TOOL_CALL"
            said = "gave no answer" if not text else "did not call a tool, although it had to"
            return Ending("failed", text, RunError(code, f"the model {said}, also after a reminder", "use a stronger model"))
        if text:
            self.memory.add(reply.message)
        self._hint = CALL_NEEDED if wants_call else ANSWER_NEEDED
        return None

    def _cut(self, reply: ModelReply, ctx: RunContext) -> Ending | None:
        """A reply that hit the output limit: continued once by itself, then delivered or failed."""
        self._cuts += 1
        text = reply.text
        if text.strip():
            self.memory.add(reply.message)
            self._parts.append(text)
        if self._cuts == 1:
            self.memory.add(user_message(CUT, PluginSource("output-limit", "notice")))
            return None
        ctx.notice("OUTPUT_LIMIT", "the reply was cut by the output limit twice; raise max_tokens")
        if text.strip():
            return Ending("answered", "".join(self._parts).strip())
        error = RunError("OUTPUT_LIMIT", "the output limit cut the model's reply twice", "raise max_tokens of this model")
        return Ending("failed", self._last_text(), error)

    def _ended(self, end: RunEnd) -> Ending:
        answer = end.answer or self._last_text()
        if end.status == "success":
            return Ending("finished", answer)
        return Ending("failed", answer, RunError("TASK_FAILED", end.answer or "the agent ended the task as failed"))


def _groups(calls: Sequence[ToolCallBlock], toolbox: Toolbox) -> list[list[ToolCallBlock]]:
    """Neighbouring reads together, every other call alone, in the model's order."""
    groups: list[list[ToolCallBlock]] = []
    previous_reads = False
    for call in calls:
        reads = len(calls) > 1 and toolbox.is_read(call)
        if reads and previous_reads:
            groups[-1].append(call)
        else:
            groups.append([call])
        previous_reads = reads
    return groups


def _error(call: ToolCallBlock, text: str) -> ToolResultBlock:
    result = tool_result_message(call.id, f"{call.name}: {text}", is_error=True)
    return result.tool_results[0]


def _was_refused(outcome: ToolOutcome | ToolResultBlock) -> bool:
    return isinstance(outcome, ToolResultBlock)


def _text_of(outcome: ToolOutcome | ToolResultBlock) -> str:
    return outcome.block.text if isinstance(outcome, ToolOutcome) else outcome.text


def _without_calls(reply: ModelReply):  # noqa: ANN202  # pyright: ignore
    kept = [block for block in reply.message.content if not isinstance(block, ToolCallBlock)]
    return replace(reply, message=reply.message.replace(content=kept)).message

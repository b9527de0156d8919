"""`ToolCallAgent`: a step is one question to the model with tools on offer, and the calls it answers with."""

from __future__ import annotations

from collections.abc import Sequence

from app.agents.calls import CallBatch, error_result
from app.agents.react import Ending, ReActAgent
from app.agents.stuck import StuckGuard, Verdict
from app.llm.client import LLM
from app.memory.compaction import Compaction, Compactor
from app.memory.memory import Memory
from app.memory.summary import Asked
from app.schema.errors import LLMError
from app.schema.message import (
    PluginSource,
    Source,
    ToolCallBlock,
    ToolResultBlock,
    tool_result_message,
    user_message,
)
from app.schema.request import ModelReply, ToolChoice
from app.schema.run import RunContext, RunError
from app.tools.base import RunEnd
from app.tools.terminate import Terminate
from app.tools.toolbox import Toolbox

CUT = (
    "Your reply was cut by the output limit. Go on exactly where it stopped; if you were writing a tool call, make it"
    " smaller, for example write a long file in several pieces."
)
LAST_STEP = "This is your last step: give your final answer now, without further work, and say what is unfinished."
LAST_CALL = "This is your last step: call terminate now, and say in its answer what is done and what is unfinished."
CALL_NEEDED = "Answer with a tool call. When the task is done, call terminate."
ANSWER_NEEDED = "You thought, but gave no answer. Give the answer, or call a tool."
GOING_IN_CIRCLES = (
    "You have made the same calls several times with the same results ({what}). Doing it again will not help:"
    " change the arguments, try another tool, or answer with what you have."
)
REFUSED = "not run: this exact call was made {count} times in a row with the same result. Do something else."


class ToolCallAgent(ReActAgent):
    """Asks, runs the calls, stores what happened; a plain text answer ends the run.

    `next_step` is a standing hint that rides at the tail of each request and is never stored. With tool choice
    `required` a reply without a call is reminded once and then fails the run; with `none` calls are ignored. The
    `compactor` keeps the conversation inside the model's window; by default with the default settings.
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
        why_llm: str = "",
    ) -> None:
        super().__init__(
            name,
            llm=llm,
            memory=memory,
            max_steps=max_steps,
            description=description,
            where=where,
            why_llm=why_llm,
        )
        self.toolbox = toolbox
        self.system = system
        self.next_step = next_step
        # A model that is always made to call can end a run only by a call.
        forced = llm.facts.tool_choice_required and Terminate.name in toolbox.names
        self.tool_choice: ToolChoice = "required" if forced else tool_choice
        self.compactor = Compactor(llm)
        self._forget()

    def _forget(self) -> None:
        self._guard = StuckGuard()
        self._hint = ""
        self._cuts = 0
        self._silences = 0
        self._parts: list[str] = []
        self._last_result = ""

    def begin(self, ctx: RunContext) -> None:
        super().begin(ctx)
        # What one run learned about going in circles does not burden the next.
        self._forget()
        limit, offered = self.llm.facts.max_tools, len(self.toolbox.specs)
        if limit is not None and offered > limit:
            model = self.llm.settings.model
            ctx.notice("HINT", f"{model} chooses well among {limit} tools; {self.name} offers {offered}", once=True)

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
        """Ask the model what to do next. What is added for one request alone rides at its tail.

        A conversation that is too long for the model is compacted: before the request, or once after its refusal.
        """
        hints = [self.next_step, self._hint]
        if last and self.max_steps > 1:
            hints.append(LAST_CALL if self.tool_choice == "required" else LAST_STEP)
        self._hint = ""
        asked = self._asked("\n".join(filter(None, hints)))
        await self.compactor.before_request(self.memory, asked, ctx)
        try:
            reply = await self._ask(asked, ctx)
        except LLMError as error:
            if error.code != "CONTEXT_WINDOW_EXCEEDED":
                raise
            if await self.compactor.after_overflow(self.memory, asked, error, ctx) is None:
                raise
            reply = await self._ask(asked, ctx)
        self.compactor.saw(self.memory, reply)
        return reply

    async def compact(self, ctx: RunContext) -> Compaction | None:
        """Compact the memory now, between two runs; None when nothing can be left out."""
        done = await self.compactor.now(self.memory, self._asked(), ctx)
        await self.memory.settled()
        return done

    def _asked(self, hint: str = "") -> Asked:
        return Asked(self.system, self.toolbox.specs, hint)

    async def _ask(self, asked: Asked, ctx: RunContext) -> ModelReply:
        await self.memory.settled()
        return await self.llm.ask_tool(
            self.memory.view(),
            system=asked.system,
            tools=asked.tools,
            tool_choice=self.tool_choice,
            hint=asked.hint,
            ctx=ctx,
        )

    async def act(self, calls: Sequence[ToolCallBlock], ctx: RunContext) -> Ending | None:
        """Run the calls of one reply by the rules of `CallBatch` and store their results.

        Every call gets exactly one result in memory, also when this is cancelled in the middle.
        """
        if self._guard.refuses(calls):
            refusal = REFUSED.format(count=self._guard.repeats)
            for call in calls:
                self._store(error_result(call, refusal), PluginSource("agent"))
            return self._judge(self._guard.record_refusal())
        batch = CallBatch(calls, self.toolbox, ctx, starting=self.memory.starting)
        try:
            await batch.run()
        finally:
            for result in batch.results:
                self._store(result, None if batch.answered(result.call_id) else PluginSource("agent"))
        for call, result in zip(calls, batch.results, strict=True):
            if not result.is_error and call.name != Terminate.name:
                self._last_result = result.text
        if batch.end is not None:
            return self._ended(batch.end)
        return self._judge(self._guard.record(calls, [result.text for result in batch.results]))

    def _store(self, result: ToolResultBlock, source: Source | None) -> None:
        """Keep a result; a `source` says that it is not the tool's own word."""
        message = tool_result_message(result.call_id, result.content, is_error=result.is_error)
        self.memory.add(message if source is None else message.replace(source=source))

    def _judge(self, verdict: Verdict) -> Ending | None:
        what = self._guard.last[:200]
        if verdict == "stuck":
            message = f"{self.name} repeated itself without progress: {what}"
            error = RunError("STUCK", message, "rephrase the task, or use a stronger model")
            return Ending("stuck", self._last_text(), error)
        if verdict == "hint":
            self._hint = GOING_IN_CIRCLES.format(what=what)
        return None

    def _text_only(self, reply: ModelReply) -> Ending | None:
        """A reply without calls: the answer, unless the mode wants a call or there is no text at all."""
        text = reply.text.strip()
        wants_call = self.tool_choice == "required"
        if text:
            kept = [block for block in reply.message.content if not isinstance(block, ToolCallBlock)]
            self.memory.add(reply.message.replace(content=kept))
            if not wants_call:
                return Ending("answered", "".join((*self._parts, reply.text)).strip())
        self._silences += 1
        if self._silences == 1:
            self._hint = CALL_NEEDED if wants_call else ANSWER_NEEDED
            return None
        code = "INVALID_TOOL_CALL" if text else "EMPTY_RESPONSE"
        said = "did not call a tool, although it had to" if text else "gave no answer"
        error = RunError(code, f"the model {said}, also after a reminder", "use a stronger model")
        return Ending("failed", text, error)

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
        message = "the output limit cut the model's reply twice"
        return Ending("failed", self._last_text(), RunError("OUTPUT_LIMIT", message, "raise max_tokens of this model"))

    def _ended(self, end: RunEnd) -> Ending:
        """The model's own end. Without an answer in it the last words count, else the last result that came back."""
        if end.status == "success":
            return Ending("finished", end.answer.strip() or self._last_text() or self._last_result)
        said = end.answer.strip() or self._last_text()
        return Ending("failed", said, RunError("TASK_FAILED", said or "the agent ended the task as failed"))

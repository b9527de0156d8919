"""`Toolbox`: the one way a model's tool call becomes a deed and its outcome a result block. No tool is defined here."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import difflib
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.sandbox.scratch import cut_middle, keep_text, where_kept
from app.schema.errors import DragomanError, SessionError, ToolError, error_chain
from app.schema.event import ApprovalRequested, ToolFinished, ToolStarted
from app.schema.message import JSON, ImageBlock, TextBlock, ToolCallBlock, ToolResultBlock
from app.schema.plan import Plan
from app.schema.request import ToolSpec
from app.schema.run import RunContext
from app.tools.approval import ApprovalPolicy, ApprovalRequest, Approver, Decision, decide_without_asking
from app.tools.arguments import Note, bind_arguments, call_signature, read_arguments
from app.tools.base import Approval, Effect, RunEnd, Tool, ToolOutput, as_output

AnyTool = Tool[Any]

Starting = Callable[[ToolCallBlock, Effect], Awaitable[None]]
"""Told just before a call has its effect; the call waits for it, and is not made when it raises `SessionError`."""


IN_DOUBT = "this exact call was cut off earlier and may have had its effect"
NOBODY_TO_ASK = "No person is there to say that it may happen twice: find out what is the case, or do something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What a call came to: the one result block for the model and what it means for the run.

    `code` is the error code of a call that the toolbox itself answered (`TOOL_UNKNOWN`, `TOOL_DENIED`, …).
    """

    block: ToolResultBlock
    ok: bool
    ends_run: RunEnd | None = None
    plan: Plan | None = None
    images: tuple[ImageBlock, ...] = ()
    truncated: bool = False
    seconds: float = 0.0
    code: str | None = None


class _Call:
    """One call on its way: what is known so far, for the events and the result."""

    def __init__(self, block: ToolCallBlock, ctx: RunContext) -> None:
        self.block = block
        self.ctx = ctx
        self.arguments: JSON = block.arguments
        self.notes: tuple[Note, ...] = ()
        self.begun = time.monotonic()
        self.code: str | None = None
        self.may_have_happened = False
        self._started = False

    def start(self) -> None:
        """Say that the deed begins; said once, and also for a call that never came so far, so that events pair up."""
        if not self._started:
            self._started = True
            self.ctx.emit(ToolStarted(self.block.id, self.block.name, self.arguments))

    def failed(self, error: BaseException) -> ToolOutput:
        self.code = error.code if isinstance(error, DragomanError) else "TOOL_FAILED"
        return ToolOutput(_words(error), ok=False)


class Toolbox:
    """The tools of one agent. `call` never raises, except for a cancellation; every call gets exactly one result.

    `max_result_chars` bounds the text of a result; the whole goes to `.dragoman/outputs/` in `workspace` then. The
    toolbox owns its tools and closes them; a smaller toolbox made by `only` or `without` shares them and does not.
    """

    def __init__(
        self,
        *tools: AnyTool,
        approver: Approver | None = None,
        approve: ApprovalPolicy = "ask",
        max_result_chars: int = 30_000,
        workspace: Path | None = None,
    ) -> None:
        self._tools: dict[str, AnyTool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are called {tool.name!r}")
            self._tools[tool.name] = tool
        self._specs = {name: tool.spec for name, tool in self._tools.items()}
        self.specs: tuple[ToolSpec, ...] = tuple(self._specs.values())
        self._approver = approver
        self._approve: ApprovalPolicy = approve
        self._max_chars = max_result_chars
        self._workspace = workspace
        self._asking = asyncio.Lock()
        self._doubts: set[str] = set()
        self._owned = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def get(self, name: str) -> AnyTool | None:
        return self._tools.get(name)

    def is_read(self, call: str | ToolCallBlock) -> bool:
        """Whether a call changes nothing, so that it may run beside others; by name, or exactly for one call."""
        tool = self._tools.get(call if isinstance(call, str) else call.name)
        if tool is None:
            return False
        if isinstance(call, str):
            return tool.effect == "read"
        try:
            values, _ = read_arguments(call.arguments, self._specs[tool.name].parameters)
            return tool.effect_of(bind_arguments(tool.Arguments, values)) == "read"
        except ToolError:
            return False

    def doubt(self, calls: Iterable[ToolCallBlock]) -> None:
        """These calls may have had their effect already: the same is made again only with a person's word."""
        self._doubts.update(call_signature(call) for call in calls)

    def doubt_like(self, other: Toolbox) -> None:
        """Doubt what another toolbox doubts; for an agent that takes over from another."""
        self._doubts |= other._doubts

    def only(self, names: Iterable[str]) -> Toolbox:
        """A smaller toolbox with these tools, in this toolbox's order; unknown names are ignored."""
        kept = set(names)
        smaller = copy.copy(self)
        smaller._tools = {name: tool for name, tool in self._tools.items() if name in kept}
        smaller._specs = {name: self._specs[name] for name in smaller._tools}
        smaller.specs = tuple(smaller._specs.values())
        smaller._owned = False
        return smaller

    def without(self, *names: str) -> Toolbox:
        return self.only(name for name in self._tools if name not in names)

    async def close(self) -> None:
        """Close every tool, also when one of them fails; the first failure is raised at the end."""
        if not self._owned:
            return
        self._owned = False
        results = await asyncio.gather(*(tool.close() for tool in self._tools.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def call(
        self, block: ToolCallBlock, ctx: RunContext, *, cut: bool = False, starting: Starting | None = None
    ) -> ToolOutcome:
        """Run one call of a model. `cut` says that the reply which holds it ended at the output limit."""
        call = _Call(block, ctx)
        try:
            output = await self._perform(call, cut=cut, starting=starting)
        except SessionError as error:
            # Nothing happens that was not written down first; the run is over.
            self._finish(call, call.failed(error))
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                if call.may_have_happened:
                    self.doubt([block])
                self._finish(call, ToolOutput("cancelled", ok=False))
                raise
            output = call.failed(ToolError(f"the tool was cancelled from inside: {error_chain(error)}"))
        except (Exception, SystemExit) as error:
            # The one place that turns a failure into words for the model.
            output = call.failed(error)
        return self._finish(call, output)

    async def _perform(self, call: _Call, *, cut: bool, starting: Starting | None) -> ToolOutput:
        tool = self._find(call.block.name)
        call.arguments, call.notes = read_arguments(call.block.arguments, self._specs[tool.name].parameters, cut=cut)
        for note in call.notes:
            call.ctx.notice("ARGUMENTS_REPAIRED", f"{tool.name}: {note.text}")
        args = bind_arguments(tool.Arguments, call.arguments)
        await self._ask(tool, args, call)
        effect = tool.effect_of(args)
        if starting is not None:
            await starting(call.block, effect)
        call.may_have_happened = effect == "once"
        call.start()
        limit = asyncio.timeout(tool.timeout_s)
        try:
            async with limit:
                return await _run(tool, args, call.ctx)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ToolError(
                f"{tool.name} did not end within {tool.timeout_s:g} s and was stopped", code="TOOL_TIMEOUT"
            ) from error

    def _find(self, name: str) -> AnyTool:
        if tool := self._tools.get(name):
            return tool
        near = difflib.get_close_matches(name, self._tools, n=1, cutoff=0.5)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise ToolError(
            f"there is no tool {name!r}.{guess}", hint=f"available tools: {', '.join(self._tools)}", code="TOOL_UNKNOWN"
        )

    async def _ask(self, tool: AnyTool, args: Any, call: _Call) -> None:
        approval = tool.approval(args)
        in_doubt = call_signature(call.block) in self._doubts
        if in_doubt:
            # Not even a standing yes covers this: a person has to know that it may happen twice.
            approval = Approval(IN_DOUBT, approval.preview if approval else "")
        if approval is None:
            return
        if in_doubt:
            decision = None if self._approver is not None else Decision(False, NOBODY_TO_ASK)
        else:
            decision = decide_without_asking(self._approve, approval, has_approver=self._approver is not None)
        if decision is None and self._approver is not None:
            request = ApprovalRequest(
                call.block.id, tool.name, call.arguments, approval.reason, approval.preview, in_doubt
            )
            async with self._asking:
                call.ctx.emit(ApprovalRequested(request.call, request.name, request.arguments, request.reason))
                decision = await self._approver.approve(request, call.ctx)
        if decision is None or not decision.allowed:
            why = decision.reason if decision and decision.reason else "the user said no"
            raise ToolError(f"not run: {approval.reason}. {why}", code="TOOL_DENIED")
        self._doubts.discard(call_signature(call.block))

    def _finish(self, call: _Call, output: ToolOutput) -> ToolOutcome:
        call.start()
        text, truncated = self._fit(output, call)
        seconds = time.monotonic() - call.begun
        call.ctx.emit(ToolFinished(call.block.id, call.block.name, output.ok, text, seconds, truncated))
        return ToolOutcome(
            block=ToolResultBlock(call.block.id, (TextBlock(text), *output.images), is_error=not output.ok),
            ok=output.ok,
            ends_run=output.ends_run,
            plan=output.plan,
            images=output.images,
            truncated=truncated,
            seconds=seconds,
            code=call.code,
        )

    def _fit(self, output: ToolOutput, call: _Call) -> tuple[str, bool]:
        """The text for the model, with head and tail kept and the notes at its end, and whether it was cut."""
        text = _encodable(output.text) or ("" if output.images else "(no output)")
        notes = "".join(f"\n[{note.text}]" for note in call.notes if note.for_model)
        room = self._max_chars - len(notes)
        if len(text) <= room:
            return text + notes, output.omitted > 0
        where = where_kept(self._workspace, output.saved or keep_text(self._workspace, call.block.id, text))
        kept = max(0, room - len(where) - 60)
        head = kept // 2
        return cut_middle(text, head, kept - head, where, omitted=output.omitted) + notes, True


@functools.cache
def _threads() -> ThreadPoolExecutor:
    # Sized for waiting, not for computing; asyncio's own pool has only a few threads and other users.
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="tool")


async def _run(tool: AnyTool, args: Any, ctx: RunContext) -> ToolOutput:
    if tool.blocking:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        result: Any = await loop.run_in_executor(_threads(), lambda: context.run(_run_blocking, tool, args, ctx))
    else:
        result = tool.run(args, ctx)
    return as_output(await result if inspect.isawaitable(result) else result)


def _run_blocking(tool: AnyTool, args: Any, ctx: RunContext) -> object:
    try:
        return tool.run(args, ctx)
    except StopIteration as error:
        # A future cannot carry a StopIteration; the await would hang.
        raise RuntimeError("the tool raised StopIteration") from error


def _encodable(text: str) -> str:
    """The text with lone surrogates (undecodable file names) replaced, so that it survives every later encoding."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def _words(error: BaseException) -> str:
    if isinstance(error, DragomanError):
        chain = error.message if isinstance(error, ToolError) else error_chain(error)
        return f"error: {chain}{f' ({error.hint})' if error.hint else ''}"
    return f"error: {type(error).__name__}: {error_chain(error)}"

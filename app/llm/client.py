"""`LLM`: the three ways to ask a model, over one `_send` that checks the budget, retries, corrects and accounts.

One `LLM` a model configuration; which configuration means what is the pool's business (`pool.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from app.config.settings import LLMSettings
from app.llm import history, reading, textcalls, tool_schemas
from app.llm.budget import Budget
from app.llm.failures import HINTS, is_silent_overflow
from app.llm.fallback import Fallback
from app.llm.governor import Governor, Slot
from app.llm.image_tokens import rule_for
from app.llm.models import ModelFacts, Told, as_told, price_usd
from app.llm.questions import as_messages, with_hint, with_images
from app.llm.retry import Sleep, call_with_retry
from app.llm.service import LLMService
from app.llm.tokens import TokenCounter
from app.llm.vision import Eyes
from app.schema.errors import DragomanError, LLMError, LLMFailure
from app.schema.event import ModelReplied, ReasoningStreamed, Retrying, TextStreamed
from app.schema.message import (
    JSON,
    ImageBlock,
    Message,
    ModelSource,
)
from app.schema.request import CallConfig, ModelReply, ModelRequest, Purpose, ToolChoice, ToolSpec
from app.schema.run import RunContext
from app.schema.stream import BlockAssembler, Chunk, Finish, ReasoningDelta, TextDelta
from app.schema.usage import Hold, Usage

TYPICAL_OUTPUT_TOKENS = 1000
"""What a reply is taken to need of a limit of tokens a minute when no cap is set; corrected when it has come."""

Read = Callable[[ModelReply], ModelReply]
"""What is made of a finished reply before it is shown, for example calls of its text."""


Probe = Callable[[], Awaitable[Told | None]]
"""What a server tells of its model; None when it does not answer."""


def _as_it_is(reply: ModelReply) -> ModelReply:
    return reply


class _ByName(type):
    """Makes `LLM("planner")` a look-up in the default pool, so that the same name is always the same object."""

    def __call__(cls, name: str = "default", settings: LLMSettings | None = None) -> LLM:
        from app.llm.pool import default_pool

        return default_pool().get(name, settings)


class LLM(metaclass=_ByName):
    """A model configuration that can be asked. `LLM("planner") is LLM("planner")`: made and kept by the pool.

    `usage` is what this configuration has spent in this process; a run's spending is in its context's ledger.
    """

    name: str
    settings: LLMSettings
    facts: ModelFacts
    vendor: str
    local: bool
    usage: Usage
    counter: TokenCounter
    fallback: Fallback
    eyes: Eyes
    _service: LLMService
    _config: CallConfig
    _sleep: Sleep
    _governor: Governor
    _probe: Probe | None
    _why_text: str

    @classmethod
    def make(
        cls,
        settings: LLMSettings,
        service: LLMService,
        *,
        facts: ModelFacts,
        vendor: str,
        local: bool,
        sleep: Sleep = asyncio.sleep,
        probe: Probe | None = None,
        helper: Callable[[], LLM | None] = lambda: None,
        governor: Governor | None = None,
    ) -> LLM:
        """For the pool: a new client of these settings, whose adapter the service has under the same name.

        `probe` asks the server what the model can do, before the first request; `helper` gives the model that describes
        pictures for one that cannot see; `governor` lets requests of the account out.
        """
        self = cls.__new__(cls)
        self.name = settings.name
        self.settings = settings
        self.facts = facts
        self.vendor = vendor
        self.local = local
        self.usage = Usage()
        self.counter = TokenCounter(settings.model)
        self.fallback = Fallback()
        self._service = service
        self._config = CallConfig(
            settings.name, settings.model, settings.reasoning_effort, _temperature(settings, facts), settings.max_tokens
        )
        self._sleep = sleep
        self.eyes = Eyes(settings.model, rule_for(settings.model), helper)
        self._governor = governor or Governor(settings.rate)
        self._probe = probe
        self._why_text = ""
        return self

    @property
    def describe(self) -> dict[str, JSON]:
        """{config, provider, model, local}, as `run_started` reports it."""
        return {"config": self.name, "provider": self.vendor, "model": self.settings.model, "local": self.local}

    def tell_where(self, ctx: RunContext) -> None:
        """Say once in a run where its text goes, when it leaves the machine."""
        if not self.local:
            ctx.notice("CLOUD", f"the text of this run goes to {self.vendor} ({self.settings.model})", once=True)

    @property
    def text_tools(self) -> bool:
        """Whether tools are described in words and calls read from text, instead of natively."""
        return self.settings.tools == "text" or (self.settings.tools == "auto" and self.facts.tools is False)

    async def ask(
        self,
        messages: Sequence[Message] | str,
        *,
        system: str = "",
        ctx: RunContext | None = None,
        purpose: Purpose = "conversation",
        response_schema: JSON = None,
    ) -> str:
        """Ask for text. Raises `LLMError` (also `EMPTY_RESPONSE` after its retries) and `TokenLimitExceeded`.

        A text that was cut by the output limit comes with the notice `OUTPUT_LIMIT`; `OUTPUT_LIMIT` is raised when
        the limit left no text at all.
        """
        ctx = ctx or RunContext()

        async def asking(llm: LLM) -> str:
            return await llm._ask(messages, system, ctx, purpose, response_schema)

        return await self.fallback.answer(self, asking, ctx)

    async def ask_with_images(
        self,
        messages: Sequence[Message] | str,
        images: Iterable[ImageBlock],
        *,
        system: str = "",
        ctx: RunContext | None = None,
    ) -> str:
        """Ask about images, which are attached to the last user message.

        Raises `UNSUPPORTED_CONTENT`, before any request when the model is known to be blind.
        """
        if self.settings.capabilities.images is None:
            await self.learn_facts()
        if not self.facts.sends_images:
            raise LLMError(
                f"{self.settings.model} cannot see images",
                "UNSUPPORTED_CONTENT",
                hint="use a model with vision, or set [llm.capabilities] images = true if it can",
            )
        asked = with_images(as_messages(messages), tuple(images))
        ctx = ctx or RunContext()

        async def asking(llm: LLM) -> str:
            return await llm._ask(asked, system, ctx, "conversation", None, images_needed=True)

        return await self.fallback.answer(self, asking, ctx, sees=True)

    async def ask_tool(
        self,
        messages: Sequence[Message] | str,
        *,
        system: str = "",
        tools: tuple[ToolSpec, ...] = (),
        tool_choice: ToolChoice = "auto",
        hint: str = "",
        ctx: RunContext | None = None,
        purpose: Purpose = "conversation",
    ) -> ModelReply:
        """Ask with tools on offer; the reply's message holds text, thinking and calls with raw arguments.

        `hint` rides at the tail of this one request as a user message and is stored nowhere. A reply whose whole text
        is one or more calls to offered tools becomes those calls, unless `tools = "native"` is configured.
        """
        ctx = ctx or RunContext()
        tools, refused = tool_schemas.usable(tools, vendor=self.vendor)
        for each in refused:
            ctx.notice("TOOL_LEFT_OUT", f"the tool {each.name} cannot be offered: {each.why}", once=True)
        asked = ModelRequest(
            self._config, as_messages(messages), system, tools, tool_choice if tools else "auto", purpose=purpose
        )

        async def asking(llm: LLM) -> ModelReply:
            return await llm._ask_tool(replace(asked, config=llm._config), hint, ctx)

        return await self.fallback.answer(self, asking, ctx)

    async def _ask_tool(self, request: ModelRequest, hint: str, ctx: RunContext) -> ModelReply:
        await self.learn_facts()
        tools = request.tools
        if not tools:
            return await self._send(with_hint(request, hint), ctx)
        if self.text_tools:
            return await self._ask_in_text(request, hint, ctx)
        try:
            return await self._send(with_hint(request, hint), ctx, self._read_native(tools))
        except LLMError as error:
            if self.settings.tools == "native":
                raise
            if error.code == "UNSUPPORTED_TOOLS":
                self.facts = replace(self.facts, tools=False)
                self._why_text = error.message
            elif error.code == "INVALID_TOOL_CALL":
                # A server whose grammar the model did not meet says the same again at temperature 0: ask in words.
                ctx.notice("INVALID_TOOL_CALL", f"{error.message}; the tools are offered as text for this step")
            else:
                raise
            return await self._ask_in_text(request, hint, ctx)

    async def learn_facts(self) -> None:
        """Ask a local server what its model can do, before anything is decided by it. The user's word still wins."""
        if self._probe is None or (told := await self._probe()) is None:
            return
        self._probe = None
        settings = self.settings
        self.facts = as_told(self.facts, told, settings.capabilities, context_window=settings.context_window)
        self._why_text = told.why_no_tools

    def _read_native(self, tools: tuple[ToolSpec, ...]) -> Read:
        def read(reply: ModelReply) -> ModelReply:
            if self.facts.tool_choice_required and reply.message.tool_calls:
                # What a very small model says beside a forced call is noise that misleads it in the next step.
                return reading.with_content(reply, reply.message.tool_calls)
            return reply if self.settings.tools == "native" else reading.read_calls(reply, tools)

        return read

    async def _ask_in_text(self, request: ModelRequest, hint: str, ctx: RunContext) -> ModelReply:
        """The same question for a model without native calls: tools in the prompt, calls read from the reply."""
        tools = request.tools
        if self._why_text and self.settings.tools == "auto" and self.facts.tools is False:
            why = f"tools are offered to {self.settings.model} as text, and its calls read from text: {self._why_text}"
            ctx.notice("TOOLS_AS_TEXT", why, once=True)
        takes_schema = self.facts.json_schema is not False and self._service.adapter(self.name).takes(
            "response_format", self.settings.model
        )
        described = textcalls.describe_tools(tools, answer="json" if takes_schema else "words")
        allow_text = request.tool_choice != "required"
        text_request = replace(
            request,
            system=f"{request.system}\n\n{described}".strip(),
            messages=textcalls.as_text_history(request.messages),
            tools=(),
            tool_choice="auto",
            response_schema=textcalls.schema_for(tools, allow_text=allow_text) if takes_schema else None,
        )

        def read(reply: ModelReply) -> ModelReply:
            if takes_schema:
                return reading.read_schema(reply, tools)
            return reading.read_calls(reply, tools, asked_in_text=True)

        return await self._send(with_hint(text_request, hint), ctx, read)

    async def _ask(
        self,
        messages: Sequence[Message] | str,
        system: str,
        ctx: RunContext,
        purpose: Purpose,
        response_schema: JSON,
        *,
        images_needed: bool = False,
    ) -> str:
        await self.learn_facts()
        request = ModelRequest(
            self._config, as_messages(messages), system, response_schema=response_schema, purpose=purpose
        )
        read = partial(reading.needs_text, limit=self.settings.max_tokens)
        reply = await self._send(request, ctx, read, images_needed=images_needed)
        if reply.finish.reason == "max-tokens":
            ctx.notice("OUTPUT_LIMIT", f"the reply of {self.settings.model} was cut by the output limit")
        return reply.text

    async def _send(
        self, request: ModelRequest, ctx: RunContext, read: Read = _as_it_is, *, images_needed: bool = False
    ) -> ModelReply:
        """One question to the model, however many attempts it takes; booked once, announced as events."""
        self._tell_what_is_assumed(ctx)
        request = await self._valid(request, ctx)
        started = time.monotonic()
        attempts = 0

        async def attempt() -> ModelReply:
            nonlocal attempts, request
            while True:
                self.budget.fit(request, ctx)  # what can never be paid does not stand in the queue
                async with self._slot(request, ctx) as slot:
                    sent, hold = await self.budget.hold(request, ctx)
                    attempts += 1
                    try:
                        return read(await self._attempt(sent, ctx, attempts, hold))
                    except LLMError as error:
                        self._tell_governor(slot, error)
                        if (learned := self._service.adapter(self.name).correct(error, sent)) is not None:
                            ctx.notice("OPTION_DROPPED", learned, once=True)
                        elif images_needed or (shown := await self._without_images(error, request, ctx)) is None:
                            raise
                        else:
                            request = shown
                    finally:
                        if hold.usage.total:
                            slot.used(hold.usage.total)

        def on_retry(_retry: int, delay_s: float, error: LLMError) -> None:
            ctx.emit(Retrying(attempts + 1, delay_s, error.code, error.message))

        policy = self._service.provider_retry_policy(self.name)
        reply = await call_with_retry(attempt, policy, on_retry=on_retry, sleep=self._sleep)
        reply = replace(reply, attempts=attempts, seconds=time.monotonic() - started)
        ctx.emit(ModelReplied(reply.text, reply.message.tool_calls, reply.finish.reason, reply.usage))
        return reply

    def _slot(self, request: ModelRequest, ctx: RunContext) -> Slot:
        """The governor's leave to send, for the agent of this context; a long wait is told."""
        tokens = 0
        if self._governor.counts_tokens:
            sent = self.counter.request(request.messages, system=request.system, tools=request.tools)
            tokens = sent + (request.config.max_tokens or TYPICAL_OUTPUT_TOKENS)

        def tell() -> None:
            ctx.notice("RATE_WAIT", f"waiting for the rate limit of {self.vendor} ([llm.rate])", once=True)

        return self._governor.slot(ctx.span, tokens=tokens, on_wait=tell)

    def _tell_governor(self, slot: Slot, error: LLMError) -> None:
        """A refusal for the rate holds all agents of the account, unless it is for longer than a retry waits."""
        wait_s = error.failure.retry_after_s
        cap_s = self._service.provider_retry_policy(self.name).retry_after_cap_s
        if error.code == "RATE_LIMIT" and (wait_s is None or wait_s <= cap_s):
            slot.refused(wait_s)

    async def _attempt(self, request: ModelRequest, ctx: RunContext, number: int, hold: Hold) -> ModelReply:
        """One attempt. Deltas are shown as they come; only a proper finish makes a reply.

        What the provider says that it took is booked however it ends.
        """
        assembler = BlockAssembler()
        try:
            try:
                finish, error = await self._read_stream(request, ctx, number, assembler)
            finally:
                if assembler.usage is not None and assembler.usage.total:
                    self._book(hold, request, assembler.usage, ctx)
            message = self._finished_message(request, assembler, finish, error)
            if hold.open:
                self._book(hold, request, self._estimate(request, message), ctx)
            return ModelReply(message, hold.usage, finish)
        finally:
            hold.release()

    async def _read_stream(
        self, request: ModelRequest, ctx: RunContext, number: int, assembler: BlockAssembler
    ) -> tuple[Finish, Exception | None]:
        call = await self._service.prepare_call(request.config)
        stream = call.stream(replace(request, config=call.config))
        async with aclosing(stream.terminal()) as chunks:
            async for chunk in chunks:
                assembler.add(chunk)
                _show(chunk, ctx, number)
        return assembler.finish, stream.error

    def _finished_message(
        self, request: ModelRequest, assembler: BlockAssembler, finish: Finish, cause: Exception | None
    ) -> Message:
        """The message of a reply that ended as it should; raises for one that did not."""
        if finish.failure is not None:
            raise _as_error(finish.failure, cause)
        usage = assembler.usage or Usage()
        # The table's window may be out of date: for a reply that is there, only the user's word counts.
        window = self.facts.context_window if finish.reason == "max-tokens" else self.settings.context_window
        if window and is_silent_overflow(finish.reason, usage, window):
            raise LLMError(
                f"{usage.total_input} tokens were sent to {request.config.model}, whose window is {window}",
                "CONTEXT_WINDOW_EXCEEDED",
                hint=HINTS["CONTEXT_WINDOW_EXCEEDED"],
            )
        message = assembler.message(ModelSource(self.name, finish.model or request.config.model))
        message = reading.split_thinking(tool_schemas.with_own_names(message, request.tools))
        if finish.reason != "max-tokens" and not reading.says_something(message):
            raise LLMError(f"{request.config.model} sent an empty reply", "EMPTY_RESPONSE")
        return message

    def _book(self, hold: Hold, request: ModelRequest, usage: Usage, ctx: RunContext) -> None:
        """What one attempt took, at its own price; real counts also teach the estimate."""
        hold.settle(usage, self.price(usage))
        self.usage += usage
        read = usage.total_input
        if usage.estimated or not read or not self.counter.used:
            return
        whole = self.counter.learn(request.messages, read, system=request.system, tools=request.tools)
        if not whole and not history.holds_images(request.messages):
            ctx.notice(
                "PROMPT_CUT",
                f"{self.vendor} read far less than was sent to {self.settings.model}: its window is too small"
                " (load the model with a larger one, or set context_window)",
                once=True,
            )

    async def _without_images(self, error: LLMError, request: ModelRequest, ctx: RunContext) -> ModelRequest | None:
        """The request with notes instead of images, when the server says what nobody knew: the model is blind."""
        if error.code != "UNSUPPORTED_CONTENT" or self.facts.images is not None:
            return None
        self.facts = replace(self.facts, images=False)
        shown = await self._valid(request, ctx)
        return None if shown is request else shown

    def _tell_what_is_assumed(self, ctx: RunContext) -> None:
        model = self.settings.model
        if not self.facts.known:
            ctx.notice(
                "MODEL_UNKNOWN_FACTS",
                f"{model} is not in the table of models; its abilities are tried, see [llm.capabilities]",
                once=True,
            )
        if self._config.temperature is not None and not self.facts.temperature:
            ctx.notice("OPTION_DROPPED", f"{model} takes no temperature; the configured one is left out", once=True)

    async def _valid(self, request: ModelRequest, ctx: RunContext) -> ModelRequest:
        """The request with a history that the model can take; what had to be changed is told."""
        images = self.facts.sends_images
        messages = await self.eyes.prepare(request.messages, ctx, sees=images)
        prepared = history.prepare(messages, images=images)
        if prepared is request.messages:
            return request
        if not images and history.holds_images(messages):
            ctx.notice(
                "IMAGES_REPLACED",
                f"{self.settings.model} cannot see images; each is replaced by a note"
                " (set [llm.capabilities] images = true if it can)",
                once=True,
            )
        if not history.is_valid(messages):
            ctx.notice("HISTORY_REPAIRED", "the history had unanswered or orphaned calls; it was repaired", once=True)
        return replace(request, messages=prepared)

    @property
    def budget(self) -> Budget:
        """What calls of this configuration may cost before they are made."""
        return Budget(
            self.name,
            self.settings.model,
            self.counter,
            self.price,
            self.facts.max_output_tokens,
            self.facts.context_window,
            self.settings.max_input_tokens,
        )

    def _estimate(self, request: ModelRequest, message: Message) -> Usage:
        """Counted by us because the server reported nothing; marked as such."""
        sent = self.counter.request(request.messages, system=request.system, tools=request.tools)
        return Usage(input_tokens=sent, output_tokens=self.counter.message(message), estimated=True)

    def price(self, usage: Usage) -> float | None:
        """USD for a usage of this model; 0 on this machine, None when no price is known."""
        return price_usd(self.settings.model, usage, provider=self.vendor, local=self.local)


def _temperature(settings: LLMSettings, facts: ModelFacts) -> float | None:
    """Very small models do what they are told only at temperature 0; for others nothing is assumed."""
    return 0.0 if settings.temperature is None and facts.small else settings.temperature


def _show(chunk: Chunk, ctx: RunContext, attempt: int) -> None:
    match chunk:
        case TextDelta():
            ctx.emit(TextStreamed(chunk.text, attempt))
        case ReasoningDelta():
            ctx.emit(ReasoningStreamed(chunk.text, attempt))
        case _:
            pass


def _as_error(failure: LLMFailure, cause: Exception | None) -> LLMError:
    """The adapter's own error, which knows more than its record, or one made of the record."""
    if isinstance(cause, LLMError):
        return cause
    error = LLMError(
        failure.message,
        failure.code,
        status=failure.status,
        retry_after_s=failure.retry_after_s,
        request_id=failure.request_id,
        hint=(cause.hint if isinstance(cause, DragomanError) else "") or HINTS.get(failure.code, ""),
    )
    error.__cause__ = cause
    return error

"""`LLM`: the three ways to ask a model, over one `_send` that checks the budget, retries, corrects and accounts.

One `LLM` a model configuration; which configuration means what is the pool's business (`pool.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from app.config.settings import LLMSettings
from app.llm import history, textcalls
from app.llm.models import ModelFacts, price_usd
from app.llm.retry import Sleep, call_with_retry
from app.llm.service import LLMService
from app.llm.tokens import TokenCounter
from app.schema.errors import LLMError, TokenLimitExceeded
from app.schema.event import ModelReplied, ReasoningStreamed, Retrying, TextStreamed
from app.schema.message import (
    JSON,
    Block,
    ImageBlock,
    Message,
    ModelSource,
    PluginSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    user_message,
)
from app.schema.request import CallConfig, ModelReply, ModelRequest, Purpose, ToolChoice, ToolSpec
from app.schema.run import RunContext
from app.schema.stream import BlockAssembler, Chunk, Finish, ReasoningDelta, TextDelta
from app.schema.usage import Usage

ASSUMED_OUTPUT_TOKENS = 1024
"""The output a budget must still leave room for when neither config nor model names a cap."""


class _ByName(type):
    """Makes `LLM("planner")` a look-up in the default pool, so that the same name is always the same object."""

    def __call__(cls, name: str = "default", settings: LLMSettings | None = None) -> LLM:
        from app.llm.pool import default_pool

        return default_pool().get(name, settings)


class LLM(metaclass=_ByName):
    """A model configuration that can be asked. `LLM("planner") is LLM("planner")`: made and kept by the pool."""

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
    ) -> LLM:
        """For the pool: a new client of these settings, whose adapter the service has under the same name."""
        self = cls.__new__(cls)
        self.name = settings.name
        self.settings = settings
        self.facts = facts
        self.vendor = vendor
        self.local = local
        self.usage = Usage()
        self.counter = TokenCounter(settings.model)
        self._service = service
        self._config = CallConfig(
            settings.name, settings.model, settings.reasoning_effort, _temperature(settings, facts), settings.max_tokens
        )
        self._sleep = sleep
        return self

    @property
    def describe(self) -> dict[str, JSON]:
        """{config, provider, model, local}, as `run_started` reports it."""
        return {"config": self.name, "provider": self.vendor, "model": self.settings.model, "local": self.local}

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
        """Ask for text. Raises `LLMError` (also `EMPTY_RESPONSE` after its retries) and `TokenLimitExceeded`."""
        request = ModelRequest(
            self._config, _as_messages(messages), system, response_schema=response_schema, purpose=purpose
        )
        reply = await self._send(request, ctx or RunContext())
        return reply.text

    async def ask_with_images(
        self, messages: Sequence[Message] | str, images: Iterable[ImageBlock], *, system: str = "", ctx: RunContext | None = None
    ) -> str:
        """Ask about images, which are attached to the last user message.

        Raises `UNSUPPORTED_CONTENT` before any request when the model is known to be blind.
        """
        if not self.facts.sends_images:
            raise LLMError(
                f"{self.settings.model} cannot see images",
                "UNSUPPORTED_CONTENT",
                hint="use a model with vision, or set [llm.capabilities] images = true if it can",
            )
        *before, last = _as_messages(messages)
        return await self.ask((*before, last.replace(content=(*last.content, *images))), system=system, ctx=ctx)

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
        request = ModelRequest(
            self._config, _as_messages(messages), system, tools, tool_choice if tools else "auto", purpose=purpose
        )
        if not tools:
            return await self._send(_with_hint(request, hint), ctx)
        if self.text_tools:
            return await self._ask_in_text(request, hint, ctx)
        if tool_choice == "required" and not self._service.adapter(self.name).takes("tool_choice", self.settings.model):
            hint = f"{hint}\nAnswer with a call of one of the tools.".strip()
        try:
            reply = await self._send(_with_hint(request, hint), ctx)
        except LLMError as error:
            # A server whose grammar the model did not meet says the same again at temperature 0: ask in words instead.
            if error.code != "INVALID_TOOL_CALL" or self.settings.tools == "native":
                raise
            ctx.notice("INVALID_TOOL_CALL", f"{error.message}; the tools are offered as text for this step")
            return await self._ask_in_text(request, hint, ctx)
        if self.facts.tool_choice_required and reply.message.tool_calls:
            # What a very small model says beside a forced call is noise that misleads it in the next step.
            return _with_content(reply, reply.message.tool_calls)
        return reply if self.settings.tools == "native" else _read_calls(reply, tools)

    async def _ask_in_text(self, request: ModelRequest, hint: str, ctx: RunContext) -> ModelReply:
        """The same question for a model without native calls: tools in the prompt, calls read from the reply."""
        required = request.tool_choice == "required"
        takes_schema = self.facts.json_schema is not False and self._service.adapter(self.name).takes(
            "response_format", self.settings.model
        )
        schema = textcalls.schema_for(request.tools, allow_text=not required) if takes_schema else None
        answer = "words" if schema is None else "json"
        text_request = replace(
            request,
            system=f"{request.system}\n\n{textcalls.describe_tools(request.tools, answer=answer)}".strip(),
            messages=textcalls.as_text_history(request.messages),
            tools=(),
            tool_choice="auto",
            response_schema=schema,
        )
        reply = await self._send(_with_hint(text_request, hint), ctx)
        names = [tool.name for tool in request.tools]
        if schema is not None:
            outcome = textcalls.read_schema_reply(reply.text, names)
            if isinstance(outcome, str):
                return _with_content(reply, (*_thinking(reply), TextBlock(outcome)) if outcome else _thinking(reply))
            if outcome:
                return _with_content(reply, (*_thinking(reply), *outcome))
        return _read_calls(reply, request.tools)

    async def _send(self, request: ModelRequest, ctx: RunContext) -> ModelReply:
        """One question to the model, however many attempts it takes; booked once, announced as events."""
        request = self._valid(request, ctx)
        started = time.monotonic()
        attempts = 0

        async def attempt(_number: int) -> ModelReply:
            nonlocal attempts
            while True:
                attempts += 1
                ctx.ledger.requests += 1
                budgeted = self._within_budget(request, ctx)
                try:
                    return await self._attempt(budgeted, ctx, attempts)
                except LLMError as error:
                    learned = self._service.adapter(self.name).correct(error, request)
                    if learned is None:
                        raise
                    ctx.notice("OPTION_DROPPED", learned, once=True)

        def on_retry(next_attempt: int, delay_s: float, error: LLMError) -> None:
            ctx.emit(Retrying(next_attempt, delay_s, error.code, error.message))

        policy = self._service.provider_retry_policy(self.name)
        reply = await call_with_retry(attempt, policy, on_retry=on_retry, sleep=self._sleep)
        usage = reply.usage if reply.usage.total else self._estimate(request, reply)
        reply = replace(reply, usage=usage, attempts=attempts, seconds=time.monotonic() - started)
        self.usage += usage
        ctx.ledger.book(self.name, usage, self.price)
        ctx.emit(ModelReplied(reply.text, reply.message.tool_calls, reply.finish.reason, usage))
        return reply

    async def _attempt(self, request: ModelRequest, ctx: RunContext, number: int) -> ModelReply:
        """One attempt. Deltas are shown as they come; only a proper finish makes a reply."""
        call = await self._service.prepare_call(request.config)
        if call.config is not request.config:
            request = replace(request, config=call.config)
        assembler = BlockAssembler()
        async with aclosing(call.stream(request).terminal()) as chunks:
            async for chunk in chunks:
                assembler.add(chunk)
                _show(chunk, ctx, number)
        finish = assembler.finish
        if finish.failure is not None:
            raise _as_error(finish)
        message = assembler.message(ModelSource(self.name, finish.model or request.config.model))
        message = _split_thinking(message)
        if finish.reason != "max-tokens" and not message.content:
            raise LLMError(f"{request.config.model} sent an empty reply", "EMPTY_RESPONSE")
        return ModelReply(message, assembler.usage or Usage(), finish)

    def _valid(self, request: ModelRequest, ctx: RunContext) -> ModelRequest:
        images = self.facts.sends_images
        prepared = history.prepare(request.messages, images=images)
        if prepared is request.messages:
            return request
        if not images and history.is_valid(request.messages):
            ctx.notice(
                "IMAGES_REPLACED",
                f"{self.settings.model} cannot see images; each is replaced by a note"
                " (set [llm.capabilities] images = true if it can)",
                once=True,
            )
        else:
            ctx.notice("HISTORY_REPAIRED", "the history had unanswered or orphaned calls; it was repaired", once=True)
        return replace(request, messages=prepared)

    def _within_budget(self, request: ModelRequest, ctx: RunContext) -> ModelRequest:
        """The request with its output capped to what the budget leaves; raises when not even that fits."""
        ledger, settings = ctx.ledger, self.settings
        if ledger.max_tokens is None and ledger.max_cost is None and settings.max_input_tokens is None:
            return request
        needed = self.counter.request(request.messages, system=request.system, tools=request.tools)
        output = request.config.max_tokens or self.facts.max_output_tokens or ASSUMED_OUTPUT_TOKENS
        if ledger.max_tokens is not None:
            left = ledger.max_tokens - ledger.usage.total - needed
            if left < 1:
                raise TokenLimitExceeded(
                    f"the run may spend {ledger.max_tokens} tokens; {ledger.usage.total} are spent and the next request"
                    f" alone needs {needed}",
                    hint="raise --max-tokens or split the task",
                )
            output = min(output, left)
        worst = self.price(Usage(input_tokens=needed, output_tokens=output)) if ledger.max_cost is not None else None
        if ledger.max_cost is not None and worst is None:
            ctx.notice("UNPRICED", f"{settings.model} has no known price; --max-cost cannot bind", once=True)
        ledger.check(
            self.name,
            input_tokens=needed,
            output_tokens=output,
            max_input_tokens=settings.max_input_tokens,
            cost_usd=worst,
        )
        if ledger.max_tokens is None:
            return request
        return replace(request, config=replace(request.config, max_tokens=output))

    def _estimate(self, request: ModelRequest, reply: ModelReply) -> Usage:
        """Counted by us because the server reported nothing; marked as such."""
        sent = self.counter.request(request.messages, system=request.system, tools=request.tools)
        return Usage(input_tokens=sent, output_tokens=self.counter.message(reply.message), estimated=True)

    def price(self, usage: Usage) -> float | None:
        """USD for a usage of this model; 0 on this machine, None when no price is known."""
        return price_usd(self.settings.model, usage, provider=self.vendor, local=self.local)


def _as_messages(messages: Sequence[Message] | str) -> tuple[Message, ...]:
    return (user_message(messages),) if isinstance(messages, str) else tuple(messages)


def _temperature(settings: LLMSettings, facts: ModelFacts) -> float | None:
    """Very small models do what they are told only at temperature 0; for others nothing is assumed."""
    return 0.0 if settings.temperature is None and facts.small else settings.temperature


def _with_hint(request: ModelRequest, hint: str) -> ModelRequest:
    if not hint:
        return request
    return replace(request, messages=(*request.messages, user_message(hint, PluginSource("hint"))))


def _show(chunk: Chunk, ctx: RunContext, attempt: int) -> None:
    match chunk:
        case TextDelta():
            ctx.emit(TextStreamed(chunk.text, attempt))
        case ReasoningDelta():
            ctx.emit(ReasoningStreamed(chunk.text, attempt))
        case _:
            pass


def _as_error(finish: Finish) -> LLMError:
    failure = finish.failure
    assert failure is not None
    return LLMError(
        failure.message,
        failure.code,
        status=failure.status,
        retry_after_s=failure.retry_after_s,
        request_id=failure.request_id,
    )


def _thinking(reply: ModelReply) -> tuple[Block, ...]:
    return tuple(block for block in reply.message.content if isinstance(block, ReasoningBlock))


def _with_content(reply: ModelReply, content: Iterable[Block]) -> ModelReply:
    return replace(reply, message=reply.message.replace(content=content))


def _read_calls(reply: ModelReply, tools: Iterable[ToolSpec]) -> ModelReply:
    """The reply with its text read as calls, when it is nothing but calls; else the reply itself."""
    if reply.message.tool_calls or not reply.text or reply.finish.reason == "max-tokens":
        return reply
    calls = textcalls.calls_in_text(reply.text, [tool.name for tool in tools])
    return _with_content(reply, (*_thinking(reply), *cast("tuple[ToolCallBlock, ...]", calls))) if calls else reply


def _split_thinking(message: Message) -> Message:
    """Thinking that a model wrote into its text, moved into reasoning blocks."""
    if "think>" not in message.text:
        return message
    content: list[Block] = []
    for block in message.content:
        if not isinstance(block, TextBlock):
            content.append(block)
            continue
        answer, thinking = textcalls.strip_thinking(block.text)
        if thinking.strip():
            content.append(ReasoningBlock(thinking))
        if answer.strip():
            content.append(TextBlock(answer))
    return message.replace(content=content)

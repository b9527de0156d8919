"""A random machine over service, retry and assembler: whatever an adapter does, no block is lost or doubled.

`DRAGOMAN_NIGHTLY=1` runs 10,000 examples instead of 200.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.config.settings import LLMSettings, RetrySettings
from app.llm import history
from app.llm.adapters.base import LLMAdapter
from app.llm.pool import LLMPool
from app.llm.service import LLMService
from app.memory.memory import Memory
from app.schema.errors import RETRIED_CODES, LLMError, LLMFailure
from app.schema.event import ModelReplied, Retrying
from app.schema.message import (
    Block,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    tool_result_message,
    user_message,
)
from app.schema.request import ModelRequest
from app.schema.run import RunContext
from app.schema.stream import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    block_kind,
    check_stream,
)
from app.schema.usage import Amount, Usage
from tests.llm.asking import BASH, READ

EXAMPLES = 10_000 if os.environ.get("DRAGOMAN_NIGHTLY") else 200
MAX_RETRIES = 2
USAGE = Usage(input_tokens=7, output_tokens=3)

words = st.text(alphabet="abc é日👍 \n", min_size=1, max_size=6).filter(str.strip)
arguments = st.sampled_from(["{}", '{"command": "ls"}', "{oops"])
call_ids = st.sampled_from(["", "call_0", "call_1", "same"])
blocks = st.one_of(
    words.map(TextBlock),
    words.map(ReasoningBlock),
    st.builds(ToolCallBlock, call_ids, st.sampled_from(["bash", "read"]), arguments),
)


@dataclass(frozen=True)
class Attempt:
    """What the adapter does once: these blocks, delta by delta in the order of `turns`, and then how it ends."""

    blocks: tuple[Block, ...]
    turns: tuple[int, ...] = ()
    end: Literal["finish", "raise", "error", "nothing", "cut"] = "finish"
    code: str = "SERVER"
    after: int = 0
    """For `raise`: chunks that still come."""

    @property
    def kept(self) -> tuple[Block, ...]:
        """What of it becomes history: a reply that the output limit cut holds no calls, which may be half written."""
        if self.end != "cut":
            return self.blocks
        return tuple(block for block in self.blocks if not isinstance(block, ToolCallBlock))

    @property
    def outcome(self) -> str | None:
        """The code it fails with, None for success."""
        match self.end:
            case "raise" | "error":
                return self.code
            case "nothing":
                return "STREAM_CLOSED"
            case _:
                return None if self.end == "cut" or self.blocks else "EMPTY_RESPONSE"


codes = st.sampled_from(
    ["SERVER", "RATE_LIMIT", "TIMEOUT", "TRANSPORT", "STREAM_CLOSED", "AUTH", "QUOTA", "INVALID_REQUEST"]
)
attempts = st.builds(
    Attempt,
    st.lists(blocks, max_size=4).map(tuple),
    st.lists(st.integers(0, 3), max_size=12).map(tuple),
    st.sampled_from(["finish", "finish", "finish", "raise", "error", "nothing", "cut"]),
    codes,
    st.integers(0, 9),
)


def chunks_for(attempt: Attempt) -> list[Chunk]:
    """The stream of an attempt: blocks open in order, grow interleaved, close in an order of their own."""
    pieces: list[deque[Chunk]] = []
    out: list[Chunk] = [BlockStart(index, block_kind(block)) for index, block in enumerate(attempt.blocks)]
    for index, block in enumerate(attempt.blocks):
        deltas: deque[Chunk] = deque()
        match block:
            case TextBlock(text):
                deltas.extend(TextDelta(index, char) for char in text)
            case ReasoningBlock(text):
                deltas.extend(ReasoningDelta(index, char) for char in text)
            case ToolCallBlock(call_id, name, arguments):
                deltas.extend(ToolCallDelta(index, call_id, name, char) for char in arguments)
            case _:
                raise AssertionError(block)
        deltas.append(BlockEnd(index, block))
        pieces.append(deltas)
    for turn in attempt.turns:
        if pieces and pieces[turn % len(pieces)]:
            out.append(pieces[turn % len(pieces)].popleft())
    for rest in pieces:
        out.extend(rest)
    return out


class RandomAdapter(LLMAdapter):
    def __init__(self) -> None:
        self.plan: deque[Attempt] = deque()
        self.served: list[ModelRequest] = []
        self.open = 0
        self.reported = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self.served.append(request)
        attempt = self.plan.popleft()
        self.open += 1
        try:
            for number, chunk in enumerate(chunks_for(attempt)):
                if attempt.end == "raise" and number == attempt.after:
                    break
                yield chunk
                if number % 3 == 0:
                    await asyncio.sleep(0)
            match attempt.end:
                case "raise":
                    raise LLMError("the provider failed", attempt.code)
                case "error":
                    yield Finish("error", LLMFailure("the provider failed", attempt.code))
                case "finish" | "cut":
                    calls = any(isinstance(block, ToolCallBlock) for block in attempt.blocks)
                    self.reported += 1
                    yield UsageReport(USAGE)
                    if attempt.blocks or attempt.end == "cut":
                        yield Finish("max-tokens" if attempt.end == "cut" else "tool-calls" if calls else "stop")
                    else:
                        yield Finish("error", LLMFailure("nothing came", "EMPTY_RESPONSE"))
                case "nothing":
                    pass
        finally:
            self.open -= 1


class Machine(RuleBasedStateMachine):
    """A conversation with models that misbehave at random; Memory is what it must keep right."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.adapters = {"one": RandomAdapter(), "two": RandomAdapter()}
        retry = RetrySettings(max_retries=MAX_RETRIES)
        made = {
            name: LLMSettings(name=name, model="scripted", api_type="test", retry=retry, tools="native")
            for name in self.adapters
        }
        self.waits: list[float] = []
        self.pool = LLMPool(made, adapters=self.adapters, sleep=self._sleep)
        self.memory = Memory()
        self.memory.add(user_message("the task"))
        self.events: list[Any] = []
        self.ctx = RunContext(sink=self.events.append)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def teardown(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()

    @precondition(lambda self: not self.memory.open_calls)
    @rule(name=st.sampled_from(["one", "two"]), plan=st.lists(attempts, min_size=1, max_size=4))
    def ask(self, name: str, plan: list[Attempt]) -> None:
        """One question: the reply is exactly the blocks of the first attempt that ended properly."""
        adapter = self.adapters[name]
        adapter.plan.extend([*plan, *[Attempt((TextBlock("done"),))] * (MAX_RETRIES + 1)])
        before = len(adapter.served)
        tried, expected = _expected(list(adapter.plan))
        reply, error = self.runner.run(self._ask(name))
        assert len(adapter.served) - before == tried
        adapter.plan.clear()
        if isinstance(expected, str):
            assert error is not None
            assert error.code == expected
            return
        assert reply is not None
        assert [_plain(block) for block in reply.content] == [_plain(block) for block in expected.kept]
        stored = self.memory.add(reply)
        assert len({call.id for call in stored.tool_calls}) == len(stored.tool_calls)

    async def _ask(self, name: str) -> tuple[Message | None, LLMError | None]:
        try:
            reply = await self.pool.get(name).ask_tool(self.memory.view(), tools=(BASH, READ), ctx=self.ctx)
        except LLMError as error:
            return None, error
        return reply.message, None

    @precondition(lambda self: not self.memory.open_calls)
    @rule(name=st.sampled_from(["one", "two"]), attempt=attempts, at=st.integers(0, 12))
    def cancel(self, name: str, attempt: Attempt, at: int) -> None:
        """A question that is stopped somewhere inside leaves nothing behind: no message, no open stream."""
        adapter = self.adapters[name]
        adapter.plan.extend([attempt, *[Attempt((TextBlock("done"),))] * (MAX_RETRIES + 1)])
        before = len(self.memory)

        async def stopped() -> None:
            task = asyncio.create_task(self._ask(name))
            for _ in range(at):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.runner.run(stopped())
        adapter.plan.clear()
        assert adapter.open == 0
        assert len(self.memory) == before

    @precondition(lambda self: self.memory.open_calls)
    @rule(count=st.integers(0, 4), crash=st.booleans())
    def answer(self, count: int, crash: bool) -> None:
        """Some results come; after a crash the others are missing, and the repair gives each exactly one."""
        calls = self.memory.open_calls
        for call in calls[:count]:
            self.memory.add(tool_result_message(call.id, f"result of {call.name}"))
        if not crash:
            for call in calls[count:]:
                self.memory.add(tool_result_message(call.id, "late"))
            return
        repaired = history.repair(self.memory.messages)
        assert history.is_valid(repaired)
        self.memory = Memory()
        self.memory.add_all(repaired)

    @rule(attempt=attempts)
    def stream_keeps_the_grammar(self, attempt: Attempt) -> None:
        """The service adds nothing to a stream and takes nothing away; its terminal view ends in one finish."""
        service, adapter = LLMService(), RandomAdapter()
        service.register_adapter(["bare"], adapter)
        adapter.plan.append(attempt)
        config = self.pool.get("one")._config  # type: ignore[reportPrivateUsage]
        request = ModelRequest(replace(config, provider="bare"), self.memory.view())

        async def read() -> list[Chunk]:
            return [chunk async for chunk in check_stream(service.stream(request).terminal())]

        chunks = self.runner.run(read())
        ends = [chunk for chunk in chunks if isinstance(chunk, BlockEnd)]
        assert sum(isinstance(chunk, Finish) for chunk in chunks) == 1
        if attempt.outcome is None:
            assert sorted(each.index for each in ends) == list(range(len(attempt.blocks)))
            assert {each.index: each.block for each in ends} == dict(enumerate(attempt.blocks))

    @invariant()
    def every_call_has_at_most_one_result(self) -> None:
        results = [result.call_id for message in self.memory.messages for result in message.tool_results]
        calls = [call.id for message in self.memory.messages for call in message.tool_calls]
        assert len(set(results)) == len(results)
        assert len(set(calls)) == len(calls)
        assert set(results) <= set(calls)
        assert set(calls) - set(results) == {call.id for call in self.memory.open_calls}

    @invariant()
    def accounts_agree(self) -> None:
        """What a provider reported is booked once, also of replies that came to nothing, and no hold stays behind."""
        ledger, reported = self.ctx.ledger, sum(adapter.reported for adapter in self.adapters.values())
        assert ledger.usage == Usage(input_tokens=7 * reported, output_tokens=3 * reported)
        assert (ledger.holds, ledger.held) == (0, Amount())
        replied = [record for record in self.events if isinstance(record.event, ModelReplied)]
        assert len(replied) <= reported
        retried = [record for record in self.events if isinstance(record.event, Retrying)]
        assert len(self.waits) <= len(retried)


def _expected(plan: list[Attempt]) -> tuple[int, Attempt | str]:
    """(attempts made, the one that counts or the code of the failure)"""
    for number, attempt in enumerate(plan, 1):
        outcome = attempt.outcome
        if outcome is None:
            return number, attempt
        if outcome not in RETRIED_CODES or number > MAX_RETRIES:
            return number, outcome
    raise AssertionError("the plan ended")


def _plain(block: Block) -> tuple[str, str]:
    """Ids of calls are made unique on the way, so they are left out."""
    match block:
        case ToolCallBlock():
            return block.name, block.arguments
        case TextBlock() | ReasoningBlock():
            return block_kind(block), block.text
        case _:
            raise AssertionError(block)


Machine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase

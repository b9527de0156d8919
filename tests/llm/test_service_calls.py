"""The one call path: failures and their facts, prepared calls, middleware, closing, replay state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from app.llm.adapters.base import ModelInfo
from app.llm.retry import RetryPolicy
from app.llm.service import (
    LLMService,
    LLMStream,
    Next,
    is_llm_adapter_failure,
    llm_failure_of,
    llm_retry_policy_of,
)
from app.schema.errors import LLMError, LLMFailure
from app.schema.message import ModelSource, assistant_message, user_message
from app.schema.request import CallConfig, ModelRequest
from app.schema.stream import Chunk, Finish
from tests.llm.asking import ask, shorts
from tests.llm.service_double import HELLO, HI, Double, coded, drain, request, serve, thinking


async def test_c01_y14_unknown_route() -> None:
    service = LLMService()
    stream = service.stream(request())
    with coded("NO_ADAPTER") as caught:
        await drain(stream)
    assert is_llm_adapter_failure(stream, caught.value)
    assert llm_retry_policy_of(stream) is None
    assert shorts(await drain(service.stream(request()).terminal())) == ["F error NO_ADAPTER"]


LIMITED = LLMError("slow down", "RATE_LIMIT", status=429, retry_after_s=1.5, request_id="r1")


async def test_c02_failure_comes_out_as_the_identical_exception_with_its_facts() -> None:
    policy = RetryPolicy(max_retries=2)
    service = LLMService()
    registration = service.register_adapter(["x"], Double(*HELLO[:2], error=LIMITED), retry_policy=policy)
    stream = service.stream(request())
    seen: list[Chunk] = []
    with pytest.raises(LLMError) as caught:
        await drain(stream, seen)
    registration.dispose()
    assert caught.value is LIMITED
    assert shorts(seen) == HI[:2]
    failure = llm_failure_of(stream, LIMITED)
    assert failure == LLMFailure("slow down", "RATE_LIMIT", 429, 1.5, "r1")
    assert llm_retry_policy_of(stream) is policy
    with pytest.raises(FrozenInstanceError):
        failure.code = "AUTH"  # type: ignore[misc, union-attr]


async def test_c02_terminal_view() -> None:
    stream = serve(Double(*HELLO[:2], error=LIMITED)).stream(request())
    chunks = await drain(stream.terminal())
    assert shorts(chunks) == [*HI[:2], "F error RATE_LIMIT"]
    assert chunks[-1] == Finish("error", LIMITED.failure)
    assert stream.error is LIMITED


async def test_c02a_another_handle_knows_nothing_of_it() -> None:
    service = serve(Double(error=LIMITED))
    stream, other = service.stream(request()), service.stream(request())
    with pytest.raises(LLMError):
        await drain(stream)
    assert not is_llm_adapter_failure(other, LIMITED)
    assert llm_failure_of(aiter(stream), LIMITED) is None
    assert llm_retry_policy_of("no stream") is None


class Unprintable(Exception):
    code = "RATE_LIMIT"

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Foreign(Exception):
    code = "RATE_LIMIT"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(ValueError("odd"), "odd", id="C02b foreign exception"),
        pytest.param(Foreign("told"), "told", id="C03 foreign code is not trusted"),
        pytest.param(Unprintable(), "LLM adapter failed", id="C04 exception without words"),
    ],
)
async def test_foreign_exceptions_are_unknown(error: Exception, message: str) -> None:
    stream = serve(Double(*HELLO[:1], error=error)).stream(request())
    with pytest.raises(type(error)) as caught:
        await drain(stream)
    assert caught.value is error
    assert llm_failure_of(stream, error) == LLMFailure(message, "UNKNOWN")


async def test_c05_an_aborted_adapter_finishes_as_aborted() -> None:
    stream = serve(Double(error=LLMError("stopped", "ABORTED"))).stream(request())
    assert shorts(await drain(stream.terminal()))[-1] == "F aborted ABORTED"


async def test_c06_middleware_errors_are_no_adapter_failures() -> None:
    service = serve(Double())

    async def broken(asked: ModelRequest, following: Next) -> AsyncIterator[Chunk]:
        async for chunk in following(asked):
            yield chunk
            raise KeyError("mine")

    remove = service.use(broken)
    for view in (lambda it: it, LLMStream.terminal):
        stream = service.stream(request())
        with pytest.raises(KeyError) as caught:
            await drain(view(stream))
        assert not is_llm_adapter_failure(stream, caught.value)
    remove()
    remove()
    assert shorts(await drain(service.stream(request()))) == HI


async def test_c07_middleware_may_answer_itself() -> None:
    adapter = Double()
    service = serve(adapter)

    async def cached(_asked: ModelRequest, _following: Next) -> AsyncIterator[Chunk]:
        yield Finish("stop")

    service.use(cached)
    stream = service.stream(request())
    assert shorts(await drain(stream)) == ["F stop"]
    assert (adapter.requests, stream.retry_policy) == ([], None)


async def test_middleware_wraps_in_order_and_may_route_elsewhere() -> None:
    service = serve(Double(), "x")
    other = Double()
    service.register_adapter(["y"], other)
    order: list[str] = []

    def named(name: str) -> Any:
        async def pass_on(asked: ModelRequest, following: Next) -> AsyncIterator[Chunk]:
            order.append(name)
            async for chunk in following(replace(asked, config=replace(asked.config, provider="y"))):
                yield chunk

        return pass_on

    service.use(named("outer"))
    service.use(named("inner"))
    await drain(service.stream(request()))
    assert (order, len(other.requests)) == (["outer", "inner"], 1)


async def test_c08_failure_of_a_nested_call_stays_there() -> None:
    service = serve(Double(), "x")
    service.register_adapter(["bad"], Double(error=LIMITED))

    async def nested(asked: ModelRequest, following: Next) -> AsyncIterator[Chunk]:
        if asked.config.provider == "x":
            with pytest.raises(LLMError):
                await drain(service.stream(request(provider="bad")))
        async for chunk in following(asked):
            yield chunk

    service.use(nested)
    stream = service.stream(request())
    assert shorts(await drain(stream)) == HI
    assert not is_llm_adapter_failure(stream, LIMITED)


async def test_c09_prepared_call_serves_once() -> None:
    adapter = Double()
    call = await serve(adapter).prepare_call(CallConfig("x", "m"))
    await drain(call.stream(request()))
    with coded("INVALID_PREPARED_CALL"):
        call.stream(request())
    assert len(adapter.requests) == 1


async def test_c10_prepared_config_is_binding() -> None:
    adapter = Double()
    call = await serve(adapter).prepare_call(CallConfig("x", "m", temperature=0))
    with coded("INVALID_PREPARED_CALL"):
        call.stream(request(temperature=0.5))
    assert adapter.requests == []


async def test_c11_prepared_call_keeps_its_registration() -> None:
    service, old, new = LLMService(), Double(), Double()
    policy = RetryPolicy(max_retries=1)
    registration = service.register_adapter(["x"], old, retry_policy=policy)
    call = await service.prepare_call(CallConfig("x", "m"))
    registration.dispose()
    service.register_adapter(["x"], new)
    stream = call.stream(request())
    await drain(stream)
    assert (len(old.requests), len(new.requests)) == (1, 0)
    assert (call.retry_policy, stream.retry_policy) == (policy, policy)


@pytest.mark.parametrize("view", [aiter, LLMStream.terminal], ids=["plain", "terminal"])
async def test_c12_leaving_early_closes_the_adapter_once(view: Any) -> None:
    adapter = Double()
    async with aclosing(view(serve(adapter).stream(request()))) as chunks:
        await anext(chunks)
        assert adapter.closed == 0
    assert adapter.closed == 1


async def test_c12_error_of_the_close_is_no_adapter_failure() -> None:
    class Stuck(Double):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            try:
                yield HELLO[0]
            finally:
                raise KeyError("while closing")

    stream = serve(Stuck()).stream(request())
    chunks = aiter(stream)
    await anext(chunks)
    with pytest.raises(KeyError) as caught:
        await chunks.aclose()  # type: ignore[attr-defined]
    assert not is_llm_adapter_failure(stream, caught.value)


class Iterator:
    """A hand-written iterator that raises and whose close never settles."""

    def __aiter__(self) -> Iterator:
        return self

    async def __anext__(self) -> Chunk:
        raise LIMITED

    async def aclose(self) -> None:
        await asyncio.Event().wait()


async def test_c13_iterator_that_raised_is_not_closed() -> None:
    class HandWritten(Double):
        def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            return Iterator()

    async with asyncio.timeout(1):
        assert shorts(await drain(serve(HandWritten()).stream(request()).terminal())) == ["F error RATE_LIMIT"]


async def test_c14_unread_stream_asks_nobody() -> None:
    adapter = Double()
    serve(adapter).stream(request())
    assert (adapter.requests, adapter.asked) == ([], 0)


async def test_c15_replay_state_only_for_the_adapter_that_made_it() -> None:
    shared, other = Double(), Double()
    service = LLMService()
    first = service.register_adapter(["x", "y"], shared)
    service.register_adapter(["z"], other)
    plain = user_message("hi")
    stateful = assistant_message("a", provider="x", model="m", replay_state={"n": 1})

    async def seen_by(route: str, adapter: Double) -> ModelRequest:
        await drain(service.stream(ask(plain, stateful, provider=route, model="m")))
        return adapter.requests[-1]

    assert (await seen_by("y", shared)).messages[1] is stateful
    stripped = (await seen_by("z", other)).messages
    assert stripped[0] is plain
    assert (stripped[1].id, stripped[1].source) == (stateful.id, ModelSource("x", "m"))
    call = await service.prepare_call(CallConfig("y", "m"))
    first.dispose()
    await drain(call.stream(ask(plain, stateful, provider="y", model="m")))
    assert shared.requests[-1].messages[1].source == ModelSource("x", "m")


async def test_c16_defaults_go_into_a_copy() -> None:
    adapter = Double()
    adapter.models = [ModelInfo("x", "m", "m", reasoning=thinking("high", default="high"))]
    mine = request()
    await drain(serve(adapter).stream(mine))
    assert (adapter.requests[0].config.reasoning_effort, mine.config.reasoning_effort) == ("high", None)
    adapter.models = []
    await drain(serve(adapter).stream(mine))
    assert adapter.requests[1] is mine


async def test_c17_error_finish_of_the_adapter_passes_once() -> None:
    own = Finish("error", LLMFailure("no", "CONTENT_FILTER"))
    stream = serve(Double(own)).stream(request())
    assert await drain(stream.terminal()) == [own]
    assert stream.error is None


async def test_c18_stream_without_a_finish_is_closed() -> None:
    adapter = Double(*HELLO[:3])
    with coded("STREAM_CLOSED"):
        await drain(serve(adapter).stream(request()))
    assert shorts(await drain(serve(adapter).stream(request()).terminal())) == [*HI[:3], "F error STREAM_CLOSED"]


@pytest.mark.parametrize("view", [aiter, LLMStream.terminal], ids=["plain", "terminal"])
async def test_c19_cancellation_passes_and_closes_the_adapter(view: Any) -> None:
    waiting = asyncio.Event()

    class Slow(Double):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            try:
                yield HELLO[0]
                waiting.set()
                await asyncio.Event().wait()
            finally:
                self.closed += 1

    adapter = Slow()
    work = asyncio.ensure_future(drain(view(serve(adapter).stream(request()))))
    await waiting.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert adapter.closed == 1


async def test_close_closes_each_adapter_once() -> None:
    class Counting(Double):
        closes = 0

        async def close(self) -> None:
            self.closes += 1

    adapter = Counting()
    service = serve(adapter, "x", "y")
    await service.close()
    assert adapter.closes == 1

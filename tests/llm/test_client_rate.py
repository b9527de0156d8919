"""A client under its account's rate: a refusal holds all agents, a width binds, and what was billed is booked."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.config.settings import LLMSettings, RateSettings
from app.llm.governor import Governor
from app.llm.pool import LLMPool
from app.schema.errors import LLMError, TokenLimitExceeded
from app.schema.event import EventRecord
from app.schema.run import RunContext
from app.schema.usage import Amount, Ledger, Usage
from tests.fault_server import reply, status, usage
from tests.llm.asking import codes
from tests.llm.conftest import MakeLLM


async def test_a_refusal_of_one_agent_holds_the_others_too(make_llm: MakeLLM, waits: list[float]) -> None:
    """The retry's own wait takes no time here, so what holds the requests back is the governor alone."""
    asked_to_wait = status(429, message="Rate limit reached", headers={"retry-after-ms": "80"})
    llm, server = await make_llm([asked_to_wait, reply("a"), reply("b")])
    first = asyncio.ensure_future(llm.ask("hi", ctx=RunContext()))
    while not waits:
        await asyncio.sleep(0.001)
    assert sorted([await llm.ask("hi", ctx=RunContext()), await first]) == ["a", "b"]
    refused, *others = [chat.at for chat in server.chats]
    assert len(others) == 2
    assert all(at - refused >= 0.075 for at in others)


async def test_a_wait_beyond_the_cap_is_for_the_refused_call_alone(make_llm: MakeLLM) -> None:
    llm, _ = await make_llm([status(429, message="Rate limit reached", headers={"retry-after": "3000"}), reply("a")])
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert caught.value.code == "RATE_LIMIT"
    started = time.monotonic()
    assert await llm.ask("hi") == "a"
    assert time.monotonic() - started < 1


async def test_no_more_than_the_configured_width_is_under_way(make_llm: MakeLLM) -> None:
    llm, server = await make_llm(lambda _: reply("a", before_headers_s=0.02), rate=RateSettings(max_concurrency=2))
    started = time.monotonic()
    await asyncio.gather(*(llm.ask("hi", ctx=RunContext()) for _ in range(6)))
    assert (len(server.chats), time.monotonic() - started >= 0.06) == (6, True)


async def test_limits_in_the_headers_of_replies_are_obeyed(make_llm: MakeLLM) -> None:
    left = iter([1, 0, 9])

    def answer(_: object) -> object:
        told = {"x-ratelimit-limit-requests": "10", "x-ratelimit-reset-requests": "60ms"}
        return reply("a", headers={**told, "x-ratelimit-remaining-requests": str(next(left))})

    llm, server = await make_llm(answer)
    for _ in range(3):
        await llm.ask("hi")
    first, second, third = [chat.at for chat in server.chats]
    assert second - first < 0.05
    assert third - second >= 0.01


async def test_two_configurations_of_one_account_share_its_governor(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([])
    same = {"api_key": "sk-test", "base_url": server.url}
    pool = LLMPool(
        {
            "a": LLMSettings(name="a", model="one", **same),  # type: ignore[arg-type]
            "b": LLMSettings(name="b", model="two", **same),  # type: ignore[arg-type]
        }
    )
    governors = {id(each._governor) for each in (llm, pool.get("a"), pool.get("b"))}  # type: ignore[reportPrivateUsage]
    await pool.close()
    assert len(governors) == 1


async def test_a_long_wait_is_told(
    make_llm: MakeLLM, events: list[EventRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.llm.governor.SAY_AFTER_S", 0.01)
    llm, _ = await make_llm(lambda _: reply("a"), rate=RateSettings(max_concurrency=1))
    governor: Governor = llm._governor  # type: ignore[reportPrivateUsage]
    async with governor.slot("somebody"):
        asking = asyncio.ensure_future(llm.ask("hi", ctx=RunContext(sink=events.append)))
        await asyncio.sleep(0.03)
        assert not asking.done()
    assert await asking == "a"
    assert "RATE_WAIT" in codes(events)


async def test_usage_of_a_reply_that_came_to_nothing_is_booked(make_llm: MakeLLM) -> None:
    """The provider bills it, so it counts; the reply's own usage stays its own."""
    llm, _ = await make_llm([reply("", usage=usage(20, 0)), reply("a", usage=usage(20, 3))])
    ctx = RunContext()
    assert await llm.ask("hi", ctx=ctx) == "a"
    assert (ctx.ledger.usage, ctx.ledger.requests, llm.usage) == (Usage(40, 3), 2, Usage(40, 3))


async def test_a_cancelled_call_holds_nothing(make_llm: MakeLLM) -> None:
    llm, server = await make_llm(lambda _: reply("a", before_headers_s=30))
    ctx = RunContext(ledger=Ledger(10_000))
    asking = asyncio.ensure_future(llm.ask("hi", ctx=ctx))
    while not server.chats:
        await asyncio.sleep(0.001)
    assert ctx.ledger.held.tokens > 0
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert (ctx.ledger.held, ctx.ledger.holds, ctx.ledger.requests) == (Amount(), 0, 1)


async def test_agents_side_by_side_never_spend_more_than_their_run_may(make_llm: MakeLLM) -> None:
    def answer(request: object) -> object:
        cap = getattr(request, "json")["max_tokens"]  # noqa: B009
        return reply("a", usage=usage(7, min(cap, 90)), before_headers_s=0.002)

    llm, server = await make_llm(answer)
    ctx = RunContext(ledger=Ledger(1_000))

    async def agent() -> int:
        mine = ctx.child()
        while True:
            try:
                await llm.ask("hi", ctx=mine)
            except TokenLimitExceeded:
                return mine.ledger.usage.total

    spent = await asyncio.gather(*(agent() for _ in range(5)))
    assert ctx.ledger.usage.total == sum(spent) <= 1_000
    assert ctx.ledger.usage.total > 900
    assert len(server.chats) == ctx.ledger.requests

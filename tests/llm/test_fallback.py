"""Another model answers when the first fails: which, when, and what the user is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.config.settings import LLMSettings
from app.llm.fallback import Fallback
from app.llm.pool import LLMPool
from app.schema.errors import LLMError, TokenLimitExceeded
from app.schema.event import EventRecord, Retrying
from app.schema.message import tool_result_message, user_message
from app.schema.run import RunContext
from tests.conftest import MakeServer
from tests.fault_server import FaultServer, call, reply, status
from tests.llm.asking import BASH, MODEL, codes

MakePool = Callable[..., LLMPool]
BUSY = status(503, message="overloaded")
DEAR = status(402, message="Insufficient Balance")


def config(server: FaultServer, **fields: Any) -> LLMSettings:
    retry = {"max_retries": 1}
    return LLMSettings(**({"model": MODEL, "base_url": server.url, "api_key": "sk-test", "retry": retry} | fields))


@pytest.mark.parametrize(
    ("fault", "attempts"),
    [
        (BUSY, 2),
        (status(429, message="slow down"), 2),
        (status(429, message="insufficient_quota"), 1),
        (DEAR, 1),
        (status(408, message="too slow"), 2),
    ],
    ids=["server", "rate limit", "quota", "balance", "timeout"],
)
async def test_the_next_model_answers(
    fault: Any, attempts: int, fault_server: MakeServer, make_pool: MakePool, ctx: RunContext, events: list[EventRecord]
) -> None:
    bad, good = await fault_server([fault, fault]), await fault_server([reply("here")])
    pool = make_pool(default=config(bad, fallback=("b",)), b=config(good, model="other"))
    assert await pool.get().ask("hi", ctx=ctx) == "here"
    assert (len(bad.chats), good.chats[0].json["model"]) == (attempts, "other")
    assert codes(events).count("FALLBACK") == 1
    assert "CLOUD" not in codes(events)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (status(401, message="bad key"), "AUTH"),
        (status(404, message="the model x does not exist"), "UNKNOWN_MODEL"),
        (status(400, message="bad field"), "INVALID_REQUEST"),
        (status(400, message="prompt is too long: 9 tokens > 8 maximum"), "CONTEXT_WINDOW_EXCEEDED"),
        (reply("", finish="content_filter"), "CONTENT_FILTER"),
    ],
    ids=["key", "model", "request", "too long for both", "filter"],
)
async def test_nobody_hides_what_the_user_must_know(
    fault: Any, code: str, fault_server: MakeServer, make_pool: MakePool, ctx: RunContext, events: list[EventRecord]
) -> None:
    bad, good = await fault_server([fault]), await fault_server([])
    pool = make_pool(default=config(bad, fallback=("b",)), b=config(good))
    with pytest.raises(LLMError) as caught:
        await pool.get().ask("hi", ctx=ctx)
    assert caught.value.code == code
    assert good.chats == []
    assert "FALLBACK" not in codes(events)


async def test_a_larger_window_takes_what_is_too_long(fault_server: MakeServer, make_pool: MakePool) -> None:
    bad = await fault_server([status(400, message="prompt is too long: 9000 tokens > 8000 maximum")])
    small, large = await fault_server([]), await fault_server([reply("read")])
    pool = make_pool(
        default=config(bad, context_window=8000, fallback=("b", "c")),
        b=config(small, context_window=4000),
        c=config(large, context_window=64_000),
    )
    assert await pool.get().ask("hi") == "read"
    assert small.chats == []


async def test_the_order_the_user_wrote_and_no_circles(fault_server: MakeServer, make_pool: MakePool) -> None:
    first, second, third = [await fault_server([BUSY] * 4) for _ in range(3)]
    pool = make_pool(
        default=config(first, fallback=("b", "c")),
        b=config(second, fallback=("default",)),
        c=config(third, fallback=("b",)),
    )
    with pytest.raises(LLMError) as caught:
        await pool.get().ask("hi")
    assert caught.value.code == "SERVER"
    assert [len(server.chats) for server in (first, second, third)] == [2, 2, 2]


async def test_a_conversation_goes_on_at_another_vendor(
    fault_server: MakeServer, make_pool: MakePool, ctx: RunContext
) -> None:
    asked = call("bash", {"command": "ls"}, id="c1")
    bad = await fault_server([reply("Looking.", tool_calls=[asked]), BUSY, BUSY])
    good = await fault_server([reply("a.txt")])
    pool = make_pool(default=config(bad, fallback=("b",)), b=config(good, model="other"))
    question = user_message("list")
    first = await pool.get().ask_tool([question], tools=(BASH,), ctx=ctx)
    result = tool_result_message(first.message.tool_calls[0].id, "a.txt")
    last = await pool.get().ask_tool([question, first.message, result], tools=(BASH,), ctx=ctx)
    assert last.text == "a.txt"
    assert [message["role"] for message in good.chats[0].json["messages"]] == ["user", "assistant", "tool"]
    assert [tool["function"]["name"] for tool in good.chats[0].json["tools"]] == ["bash"]
    assert pool.totals["b"].output_tokens > 0


async def test_a_failed_model_rests(fault_server: MakeServer, make_pool: MakePool) -> None:
    now = 0.0
    bad, good = await fault_server([DEAR, reply("back")]), await fault_server([reply("1"), reply("2")])
    pool = make_pool(default=config(bad, fallback=("b",)), b=config(good))
    llm = pool.get()
    llm.fallback = Fallback(("b",), pool.get, clock=lambda: now)
    assert [await llm.ask("a"), await llm.ask("b")] == ["1", "2"]
    assert len(bad.chats) == 1
    now = 31.0
    assert await llm.ask("c") == "back"


async def test_a_spent_budget_is_no_reason_to_ask_another(fault_server: MakeServer, make_pool: MakePool) -> None:
    bad, good = await fault_server([]), await fault_server([])
    pool = make_pool(default=config(bad, fallback=("b",), max_input_tokens=1), b=config(good))
    with pytest.raises(TokenLimitExceeded):
        await pool.get().ask("a long question " * 50)
    assert good.chats == []


async def test_a_stand_in_that_cannot_be_made_is_told(
    fault_server: MakeServer, make_pool: MakePool, ctx: RunContext, events: list[EventRecord]
) -> None:
    bad, good = await fault_server([DEAR]), await fault_server([reply("here")])
    pool = make_pool(default=config(bad, fallback=("b", "c")), b=config(good, model=""), c=config(good))
    assert await pool.get().ask("hi", ctx=ctx) == "here"
    assert codes(events).count("FALLBACK") == 2


async def test_text_that_leaves_the_machine_is_told(
    fault_server: MakeServer, make_pool: MakePool, ctx: RunContext, events: list[EventRecord]
) -> None:
    bad, good = await fault_server([DEAR]), await fault_server([reply("here")])
    pool = make_pool(default=config(bad, fallback=("b",)), b=config(good))
    pool.get("b").local = False
    assert await pool.get().ask("hi", ctx=ctx) == "here"
    assert "CLOUD" in codes(events)


async def test_y10_each_model_counts_its_own_retries(
    fault_server: MakeServer, make_pool: MakePool, ctx: RunContext, events: list[EventRecord]
) -> None:
    bad, good = await fault_server([BUSY, BUSY]), await fault_server([BUSY, reply("here")])
    pool = make_pool(default=config(bad, fallback=("b",)), b=config(good, model="other"))
    assert await pool.get().ask("hi", ctx=ctx) == "here"
    assert [record.event.attempt for record in events if isinstance(record.event, Retrying)] == [2, 1, 2]
    assert (len(bad.chats), len(good.chats)) == (2, 2)

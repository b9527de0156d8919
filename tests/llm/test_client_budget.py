"""What a client books and what it may spend: usage or an estimate, and limits that bind before the request."""

from __future__ import annotations

from typing import Any

import pytest

from app.config.settings import LLMSettings
from app.llm.budget import ASSUMED_OUTPUT_TOKENS
from app.llm.client import LLM
from app.llm.models import facts_for
from app.schema.errors import BudgetExceeded, TokenLimitExceeded
from app.schema.event import EventRecord
from app.schema.run import RunContext
from app.schema.usage import Ledger, Usage
from tests.fault_server import cut_after, reply, status, usage
from tests.llm.asking import codes
from tests.llm.conftest import MakeLLM


async def test_defect_11_m16_missing_usage_is_estimated_and_marked(make_llm: MakeLLM, ctx: RunContext) -> None:
    llm, _ = await make_llm([reply("hello world", usage_at="absent")])
    got = await llm.ask_tool("hello world", ctx=ctx)
    assert got.usage == Usage(2 + 4 + 2, 4 + 2, estimated=True)
    assert ctx.ledger.usage == got.usage


@pytest.mark.parametrize("usage_at", ["trailer", "finish", "twice", "every"])
async def test_defect_24_m16_usage_wherever_it_stands(usage_at: Any, make_llm: MakeLLM) -> None:
    llm, _ = await make_llm([reply("a", usage=usage(20, 3), usage_at=usage_at)])
    assert (await llm.ask_tool("hi")).usage == Usage(20, 3)


async def test_defect_23_only_successful_calls_are_booked(make_llm: MakeLLM, ctx: RunContext) -> None:
    llm, _ = await make_llm([status(503), cut_after(events=3), reply("a", usage=usage(20, 3))])
    await llm.ask("hi", ctx=ctx)
    assert (ctx.ledger.usage, ctx.ledger.requests, llm.usage) == (Usage(20, 3), 3, Usage(20, 3))


async def test_h5_defect_09_a_budget_belongs_to_one_run(make_llm: MakeLLM) -> None:
    llm, server = await make_llm(lambda _: reply("a", usage=usage(400, 100)))
    first, second = RunContext(ledger=Ledger(max_tokens=1000)), RunContext(ledger=Ledger(max_tokens=1000))
    await llm.ask("hi", ctx=first)
    await llm.ask("hi", ctx=first)
    with pytest.raises(TokenLimitExceeded, match="1000 tokens; 1000 are spent"):
        await llm.ask("hi", ctx=first)
    assert await llm.ask("hi", ctx=second) == "a"
    assert (len(server.chats), llm.usage.total) == (3, 1500)


async def test_max_input_tokens_bounds_a_run_and_not_the_output(make_llm: MakeLLM) -> None:
    llm, server = await make_llm(lambda _: reply("a", usage=usage(50, 9)), max_input_tokens=60)
    ctx = RunContext()
    await llm.ask("hi", ctx=ctx)
    assert "max_tokens" not in server.chats[0].json
    with pytest.raises(TokenLimitExceeded, match="60 input tokens"):
        await llm.ask("a question that is too long for what is left of it", ctx=ctx)
    assert len(server.chats) == 1
    assert await llm.ask("hi", ctx=RunContext()) == "a"


@pytest.mark.parametrize(
    ("settings", "max_tokens", "sent"),
    [
        pytest.param({}, 1_000_000, ASSUMED_OUTPUT_TOKENS, id="unknown cap: the assumed one"),
        pytest.param({}, 107, 100, id="unknown cap: what is left"),
        pytest.param({"max_tokens": 50}, 1_000_000, 50, id="the user's cap"),
        pytest.param({"max_tokens": 500}, 107, 100, id="what is left of the user's cap"),
        pytest.param({"model": "gpt-4o"}, 1_000_000, None, id="the model's own cap needs no word"),
        pytest.param({"model": "gpt-4o"}, 107, 100, id="what is left of the model's cap"),
        pytest.param({"context_window": 1000}, 1_000_000, 1000 - 7, id="no more than the window takes"),
    ],
)
async def test_output_is_capped_to_what_the_budget_leaves(
    settings: dict[str, Any], max_tokens: int, sent: int | None, make_llm: MakeLLM
) -> None:
    llm, server = await make_llm([reply("a")], **settings)
    await llm.ask("hi", ctx=RunContext(ledger=Ledger(max_tokens=max_tokens)))
    assert server.chats[0].json.get("max_tokens") == sent


async def test_money_caps_the_output_and_stops_before_it_is_overspent(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([reply("a", usage=usage(7, 60))])
    paid = LLM.make(
        LLMSettings(name="main", model="gpt-4o"),
        llm._service,
        facts=facts_for("gpt-4o"),
        vendor="openai",
        local=False,  # type: ignore[reportPrivateUsage]
    )
    ctx = RunContext(ledger=Ledger(max_cost=0.001))
    await paid.ask("hi", ctx=ctx)
    # $2.50 and $10 a million: 7 tokens in leave $0.0009825, which buys 98 tokens out.
    assert server.chats[0].json["max_tokens"] == 98
    assert ctx.ledger.cost_usd == pytest.approx(0.0006175)
    with pytest.raises(BudgetExceeded) as caught:
        await paid.ask("hi " * 200, ctx=ctx)
    assert (caught.value.code, len(server.chats)) == ("BUDGET", 1)


async def test_unknown_price_is_said_once(make_llm: MakeLLM, events: list[EventRecord]) -> None:
    llm, server = await make_llm([reply("a"), reply("b")], api_type="deepseek", model="no-such-model")
    ctx = RunContext(sink=events.append, ledger=Ledger(max_cost=0.001))
    await llm.ask("hi", ctx=ctx)
    await llm.ask("hi", ctx=ctx)
    assert codes(events) == ["MODEL_UNKNOWN_FACTS", "UNPRICED"]
    assert "max_tokens" not in server.chats[0].json

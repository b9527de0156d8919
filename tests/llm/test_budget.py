"""Holds: calls side by side never overshoot together, nothing stays held, a call waits for what others give back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.config.settings import BudgetSettings, LimitSettings
from app.llm.budget import Budget
from app.llm.models import _looked_up_price, price_usd  # type: ignore[reportPrivateUsage]
from app.llm.spending import process_ledger, run_ledger
from app.llm.tokens import TokenCounter
from app.schema.errors import BudgetExceeded, TokenLimitExceeded
from app.schema.event import EventRecord
from app.schema.run import RunContext
from app.schema.usage import Amount, Hold, Ledger, Limits, Usage, Worst
from tests.llm.asking import ask, codes

MONEY = 1e-6
"""Prices of the tests: a dollar for a million tokens, in and out."""


def price(usage: Usage) -> float:
    return usage.total * MONEY


def unpriced(usage: Usage) -> None:
    return None


def budget(price: Callable[[Usage], float | None] = price, **fields: int) -> Budget:
    return Budget("main", "a-model", TokenCounter("gpt-4o"), price, **fields)


class Holding(RuleBasedStateMachine):
    """Calls of two agents of one run, in any order of beginning and ending, under limits at three levels."""

    def __init__(self) -> None:
        super().__init__()
        self.process = Ledger(5_000, 4e-3, 40, scope="process")
        self.run = Ledger(3_000, 3e-3, 30, scope="run", parent=self.process, for_agents=Limits(2_000, None, 20))
        self.agents = [self.run.child(), self.run.child()]
        self.open: list[Hold] = []
        self.booked = Usage()

    @rule(agent=st.integers(0, 1), tokens=st.integers(0, 900), output=st.integers(0, 900))
    def admit(self, agent: int, tokens: int, output: int) -> None:
        ledger = self.agents[agent]
        before = [(each.holds, each.held, each.requests) for each in ledger.chain()]
        worst = Worst(tokens, output, (tokens + output) * MONEY)
        fits = all(
            each.spent.tokens + each.held.tokens + worst.tokens <= (each.max_tokens or 1 << 60)
            and each.requests < (each.max_requests or 1 << 60)
            for each in ledger.chain()
        )
        try:
            self.open.append(ledger.hold("main", worst))
        except BudgetExceeded:
            assert not fits
            assert [(each.holds, each.held, each.requests) for each in ledger.chain()] == before
        else:
            assert fits

    @rule(which=st.integers(0, 50), share=st.floats(0, 1))
    def settle(self, which: int, share: float) -> None:
        """The provider takes no more than was held for it."""
        if self.open:
            hold = self.open.pop(which % len(self.open))
            usage = Usage(int(hold.worst.input_tokens * share), int(hold.worst.output_tokens * share))
            hold.settle(usage, price(usage))
            hold.release()
            hold.settle(usage, price(usage))
            self.booked += usage

    @rule(which=st.integers(0, 50))
    def fail(self, which: int) -> None:
        if self.open:
            hold = self.open.pop(which % len(self.open))
            hold.release()
            hold.release()

    @invariant()
    def no_level_overshoots_and_what_is_held_is_what_is_open(self) -> None:
        for ledger in (self.process, self.run, *self.agents):
            mine = [hold for hold in self.open if ledger in list(hold.ledger.chain())]
            assert ledger.holds == len(mine)
            assert ledger.held.tokens == sum(hold.worst.tokens for hold in mine)
            assert ledger.held.cost_usd == pytest.approx(sum(hold.worst.cost_usd or 0 for hold in mine))
            assert ledger.spent.tokens + ledger.held.tokens <= (ledger.max_tokens or 1 << 60)
            assert ledger.spent.cost_usd + ledger.held.cost_usd <= (ledger.max_cost or 1e9) + 1e-8
            if not mine:
                assert ledger.held == Amount()
        assert self.run.usage == self.process.usage == self.booked
        assert self.agents[0].usage + self.agents[1].usage == self.booked


Holding.TestCase.settings = settings(max_examples=60, deadline=None)
TestHolding = Holding.TestCase


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3), st.sampled_from("sfc")), min_size=1, max_size=12))
def test_waiting_calls_in_any_order_neither_overshoot_nor_stay(calls: list[tuple[int, int, str]]) -> None:
    """Tasks that settle, fail or are cancelled while others wait for their share."""
    limit = 2_000

    async def scenario() -> None:
        ctx = RunContext(ledger=Ledger(limit))

        async def one(output: int, steps: int) -> None:
            request = ask("hi", max_tokens=1_500)
            try:
                sent, hold = await budget().hold(request, ctx.child())
            except TokenLimitExceeded:
                return
            try:
                assert ctx.ledger.spent.tokens + ctx.ledger.held.tokens <= limit
                for _ in range(steps):
                    await asyncio.sleep(0)
                usage = Usage(7, min(output, sent.config.max_tokens or 0))
                hold.settle(usage, price(usage))
            finally:
                hold.release()

        tasks = [asyncio.ensure_future(one(output, steps)) for output, steps, _ in calls]
        await asyncio.sleep(0)
        for task, (_, _, how) in zip(tasks, calls, strict=True):
            if how == "c":
                task.cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert (ctx.ledger.holds, ctx.ledger.held) == (0, Amount())
        assert ctx.ledger.usage.total <= limit
        assert not ctx.ledger._waiting  # type: ignore[reportPrivateUsage]

    asyncio.run(scenario())


async def test_a_call_waits_for_what_another_gives_back() -> None:
    ctx = RunContext(ledger=Ledger(5_000))
    first, hold = await budget().hold(ask("hi", max_tokens=4_000), ctx.child())
    waiting = asyncio.ensure_future(budget().hold(ask("hi", max_tokens=4_000), ctx.child()))
    await asyncio.sleep(0)
    assert (first.config.max_tokens, waiting.done()) == (4_000, False)
    hold.settle(Usage(7, 93), None)
    second, other = await waiting
    assert second.config.max_tokens == 4_000
    other.release()


async def test_a_call_that_cannot_fit_does_not_wait_for_others() -> None:
    ctx = RunContext(ledger=Ledger(100))
    _, hold = await budget().hold(ask("hi"), ctx.child())
    with pytest.raises(TokenLimitExceeded):
        async with asyncio.timeout(1):
            await budget().hold(ask("word " * 200), ctx.child())
    hold.release()


async def test_one_call_takes_at_most_half_of_what_is_left() -> None:
    ctx = RunContext(ledger=Ledger(100_007))
    sent, _ = await budget(output_cap=128_000).hold(ask("hi"), ctx.child())
    second, _ = await budget(output_cap=128_000).hold(ask("hi"), ctx.child())
    assert (sent.config.max_tokens, second.config.max_tokens) == (50_000, 24_996)


async def test_the_agents_own_limit_binds_before_the_runs() -> None:
    settings = BudgetSettings(max_tokens=10_000, agent=LimitSettings(max_tokens=500))
    run = run_ledger(settings, process_ledger(settings), one_agent=False)
    child = run.child()
    child.book("main", Usage(480, 0))
    with pytest.raises(TokenLimitExceeded) as caught:
        child.hold("main", Worst(21))
    assert caught.value.message == "the agent may spend 500 tokens; 480 are spent and the next request needs up to 21"
    assert caught.value.hint == "raise [budget.agent] max_tokens or split the task"
    run.child().hold("main", Worst(500))


async def test_the_only_agent_of_a_run_has_both_limits() -> None:
    settings = BudgetSettings(max_requests=3, agent=LimitSettings(max_requests=2))
    process = process_ledger(settings)
    ledger = run_ledger(settings, process, one_agent=True)
    ledger.hold("main", Worst()).release()
    ledger.hold("main", Worst()).release()
    with pytest.raises(BudgetExceeded, match="the agent may send 2 requests; 2 are sent"):
        ledger.hold("main", Worst())
    assert (process.requests, ledger.run.requests) == (2, 2)


def test_a_limit_of_requests_names_its_flag() -> None:
    ledger = Ledger(max_requests=1)
    ledger.hold("main", Worst())
    with pytest.raises(BudgetExceeded) as caught:
        ledger.hold("main", Worst())
    assert (caught.value.message, caught.value.hint, caught.value.code) == (
        "the run may send 1 requests; 1 are sent",
        "raise --max-requests or split the task",
        "BUDGET",
    )


def test_runs_of_a_process_share_its_limit() -> None:
    settings = BudgetSettings(process=LimitSettings(max_cost=1.0))
    process = process_ledger(settings)
    run_ledger(settings, process, one_agent=True).hold("main", Worst(1, 1, 0.7))
    with pytest.raises(BudgetExceeded) as caught:
        run_ledger(settings, process, one_agent=True).hold("main", Worst(1, 1, 0.4))
    assert caught.value.message == (
        "all runs of this process may cost $1.0000; $0.0000 is spent, $0.7000 is held by calls under way"
        " and the next request may cost $0.4000"
    )


async def test_an_unpriced_model_is_counted_or_refused(events: list[EventRecord]) -> None:
    counted = RunContext(sink=events.append, ledger=Ledger(max_cost=0.01))
    sent, hold = await budget(unpriced).hold(ask("hi"), counted)
    hold.settle(Usage(10, 5), None)
    assert (sent.config.max_tokens, codes(events)) == (None, ["UNPRICED"])
    assert (counted.ledger.cost_usd, counted.ledger.usage.total) == (None, 15)
    refusing = Ledger(max_cost=0.01, unpriced="refuse")
    with pytest.raises(BudgetExceeded, match="a-model has no known price, and money is limited"):
        await budget(unpriced).hold(ask("hi"), RunContext(ledger=refusing).child())
    free = RunContext(ledger=Ledger(unpriced="refuse"))
    await budget(unpriced).hold(ask("hi"), free)


def test_each_call_is_booked_at_its_own_price() -> None:
    """A price that rises with the length of one call is not asked for the sum of many."""

    def dear_when_long(usage: Usage) -> float:
        return usage.total * (2.0 if usage.total > 100 else 1.0)

    ledger = Ledger()
    for _ in range(3):
        ledger.book("main", Usage(80), dear_when_long)
    assert ledger.cost_usd == 240.0


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        pytest.param("gpt-4o", "openai", id="a rate a token"),
        pytest.param("gemini-2.5-pro", "google", id="dearer when long"),
        pytest.param("deepseek-chat", "deepseek", id="by the time of day"),
        pytest.param("no-such-model", "openai", id="unknown"),
    ],
)
@pytest.mark.parametrize("usage", [Usage(1_000, 20), Usage(10, 5, 100, 50), Usage(300_000, 9), Usage(0, 7, 3)])
def test_a_kept_rate_gives_the_price_of_the_table(model: str, provider: str, usage: Usage) -> None:
    wanted = _looked_up_price(model, usage, provider)
    got = price_usd(model, usage, provider=provider, local=False)
    assert got == (None if wanted is None else pytest.approx(wanted, abs=1e-12))

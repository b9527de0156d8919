"""Disjoint token counts, and the ledger that keeps a run under its limits before the money is spent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.schema.errors import BudgetExceeded, TokenLimitExceeded
from app.schema.usage import Ledger, Price, Usage, Worst
from tests.schema.chunks import PROPERTY

counts = st.integers(0, 10**9)
usages = st.builds(Usage, counts, counts, counts, counts, counts, st.booleans())


def test_input_counts_are_disjoint_and_reasoning_is_part_of_the_output() -> None:
    usage = Usage(27, 50, cache_read_tokens=256, cache_write_tokens=10, reasoning_tokens=40)
    assert usage.total_input == 293
    assert usage.total == 343


def test_sums_are_field_by_field() -> None:
    assert Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50, True) == Usage(11, 22, 33, 44, 55, True)


@PROPERTY
@given(usages, usages, usages)
def test_adding_is_arithmetic(a: Usage, b: Usage, c: Usage) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Usage() == a
    assert (a + b).total == a.total + b.total
    assert (a + b).estimated == (a.estimated or b.estimated)


def test_json_form() -> None:
    assert list(Usage(1, 2, 3, 4, 5, True).to_json().items()) == [
        ("input_tokens", 1),
        ("cache_read_tokens", 3),
        ("cache_write_tokens", 4),
        ("output_tokens", 2),
        ("reasoning_tokens", 5),
        ("estimated", True),
    ]


def dollar_a_thousand(usage: Usage) -> float:
    return usage.total / 1000


def price_unknown(usage: Usage) -> None:
    return None


def test_booking_adds_up_by_config() -> None:
    ledger = Ledger()
    ledger.book("default", Usage(10, 1), dollar_a_thousand)
    ledger.book("planner", Usage(5, 5, cache_read_tokens=100), lambda usage: usage.total / 100)
    ledger.book("default", Usage(20, 2, estimated=True), dollar_a_thousand)
    assert ledger.by_config == {
        "default": Usage(30, 3, estimated=True),
        "planner": Usage(5, 5, cache_read_tokens=100),
    }
    assert ledger.usage == Usage(35, 8, cache_read_tokens=100, estimated=True)
    assert ledger.cost_usd == pytest.approx(0.033 + 1.1)


def test_nothing_booked_costs_nothing() -> None:
    assert Ledger().cost_usd == 0
    assert Ledger().usage == Usage()


@pytest.mark.parametrize("price", [None, price_unknown])
def test_a_call_without_a_price_makes_the_cost_unknown(price: Price | None) -> None:
    ledger = Ledger()
    ledger.book("planner", Usage(500, 0), dollar_a_thousand)
    ledger.book("default", Usage(10, 1), price)
    assert ledger.cost_usd is None


@pytest.mark.parametrize("price", [None, price_unknown])
def test_a_call_without_a_price_does_not_make_the_others_free(price: Price | None) -> None:
    ledger = Ledger(max_cost=1.0)
    ledger.book("planner", Usage(500, 0), dollar_a_thousand)
    ledger.book("local", Usage(10, 1), price)
    ledger.check("planner", Worst(1, 1, 0.5))
    with pytest.raises(BudgetExceeded, match=r"\$0\.5000 is spent"):
        ledger.check("planner", Worst(1, 1, 0.51))


def spent_ledger(**limits: Any) -> Ledger:
    """A ledger that holds 600 + 100 tokens and $0.70."""
    ledger = Ledger(**limits)
    ledger.book("default", Usage(200, 60, cache_read_tokens=150, cache_write_tokens=50), dollar_a_thousand)
    ledger.book("planner", Usage(200, 40), dollar_a_thousand)
    return ledger


# Each limit is met exactly by the worst case; one token or cent more breaks it.
WITHIN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no limit": ({}, {"worst": Worst(10**9, 10**9, 1e6)}),
    "run tokens to the last": ({"max_tokens": 1000}, {"worst": Worst(200, 100)}),
    "config input to the last": ({}, {"worst": Worst(100, 10**6), "max_input_tokens": 500}),
    "cost to the last": ({"max_cost": 1.25}, {"worst": Worst(1, 1, 0.55)}),
    "no known price": ({"max_cost": 0.1}, {"worst": Worst(1, 1, None)}),
}


@pytest.mark.parametrize(("limits", "call"), WITHIN.values(), ids=WITHIN)
def test_a_call_that_just_fits_is_allowed_and_not_booked(limits: dict[str, Any], call: dict[str, Any]) -> None:
    ledger = spent_ledger(**limits)
    ledger.check("default", **call)
    assert ledger == spent_ledger(**limits)


BEYOND: dict[str, tuple[dict[str, Any], dict[str, Any], type[BudgetExceeded], str, str]] = {
    "run tokens, by the output's worst case": (
        {"max_tokens": 1000},
        {"worst": Worst(200, 101)},
        TokenLimitExceeded,
        "the run may spend 1000 tokens; 700 are spent and the next request needs up to 301",
        "raise --max-tokens or split the task",
    ),
    "run tokens, by the input": (
        {"max_tokens": 1000},
        {"worst": Worst(301, 0)},
        TokenLimitExceeded,
        "the run may spend 1000 tokens; 700 are spent and the next request needs up to 301",
        "raise --max-tokens or split the task",
    ),
    "config input": (
        {},
        {"worst": Worst(101, 0), "max_input_tokens": 500},
        TokenLimitExceeded,
        "the run may spend 500 input tokens on [default]; 400 are spent and the next request needs 101",
        "raise max_input_tokens of [llm.default] or split the task",
    ),
    "cost": (
        {"max_cost": 1.25},
        {"worst": Worst(1, 1, 0.56)},
        BudgetExceeded,
        "the run may cost $1.2500; $0.7000 is spent and the next request may cost $0.5600",
        "raise --max-cost or use a cheaper model",
    ),
}


@pytest.mark.parametrize(("limits", "call", "kind", "message", "hint"), BEYOND.values(), ids=BEYOND)
def test_a_call_that_may_overshoot_is_stopped_before_it_is_made(
    limits: dict[str, Any], call: dict[str, Any], kind: type[BudgetExceeded], message: str, hint: str
) -> None:
    ledger = spent_ledger(**limits)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.check("default", **call)
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.code == ("BUDGET" if kind is BudgetExceeded else "TOKEN_LIMIT")
    assert ledger == spent_ledger(**limits)


def test_the_input_allowance_counts_its_own_config_alone() -> None:
    ledger = spent_ledger()
    ledger.check("planner", Worst(300, 0), max_input_tokens=500)
    ledger.check("vision", Worst(500, 0), max_input_tokens=500)
    with pytest.raises(TokenLimitExceeded, match="200 are spent"):
        ledger.check("planner", Worst(301, 0), max_input_tokens=500)


def test_a_limit_of_nothing_allows_nothing() -> None:
    with pytest.raises(TokenLimitExceeded):
        Ledger(max_tokens=0).check("default", Worst(1))
    with pytest.raises(BudgetExceeded):
        Ledger(max_cost=0.0).check("default", Worst(1, 0, 0.01))
    with pytest.raises(TokenLimitExceeded):
        Ledger().check("default", Worst(1, 0), max_input_tokens=0)

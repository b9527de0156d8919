"""Which failures are tried again and how long is waited; arithmetic and the one loop, without real waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import RetryError, retry, stop_after_attempt

from app.llm.retry import RetryPolicy, call_with_retry, unwrap_retry_error
from app.schema.errors import CODES, RETRIED_CODES, ConfigError, LLMError, TokenLimitExceeded
from app.schema.event import EventRecord, Retrying
from app.schema.run import RunContext
from app.schema.usage import Ledger
from tests.fault_server import cut_after, reply, status
from tests.llm.asking import ask, chunks_of
from tests.llm.conftest import MakeLLM

POLICY = RetryPolicy()


@pytest.mark.parametrize(
    ("retry_number", "delays"),
    [
        (1, (0.45, 0.5, 0.55)),
        (2, (0.9, 1.0, 1.1)),
        (5, (7.2, 8.0, 8.8)),
        (6, (9.0, 10.0, 10.0)),
        (2000, (9.0, 10.0, 10.0)),
    ],
)
def test_y01_delays(retry_number: int, delays: tuple[float, float, float]) -> None:
    assert tuple(POLICY.delay_s(retry_number, dice) for dice in (0, 0.5, 1)) == pytest.approx(delays)


@given(st.integers(1, 10**9), st.floats(0, 1), st.floats(0.001, 1e6), st.floats(0.001, 1e6), st.floats(0, 1))
def test_y01_a_delay_stays_in_its_bounds(number: int, dice: float, one: float, other: float, jitter: float) -> None:
    policy = RetryPolicy(initial_delay_s=min(one, other), max_delay_s=max(one, other), jitter=jitter)
    assert 0 <= policy.delay_s(number, dice) <= policy.max_delay_s


@pytest.mark.parametrize(
    "values",
    [
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"max_retries": True},
        {"codes": frozenset()},
        {"codes": frozenset({""})},
        {"initial_delay_s": 0},
        {"initial_delay_s": 11.0},
        {"initial_delay_s": float("nan")},
        {"max_delay_s": float("inf")},
        {"max_delay_s": 2_147_484.0 * 1000},
        {"max_delay_s": True},
        {"retry_after_cap_s": -1.0},
        {"jitter": 1.1},
        {"jitter": -0.1},
    ],
    ids=str,
)
def test_y02_policies_that_make_no_sense(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RetryPolicy(**values)


def test_which_codes_are_retried() -> None:
    assert {"RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT", "STREAM_CLOSED", "EMPTY_RESPONSE"} == RETRIED_CODES


@pytest.mark.parametrize("code", sorted(CODES))
def test_retried_is_decided_by_the_code_alone(code: str) -> None:
    waits = POLICY.wait_s(LLMError("rate limit, try again", code), 1, 0.5)
    assert waits == (0.5 if code in RETRIED_CODES else None)


def test_y04_a_wish_of_the_provider_is_obeyed_exactly() -> None:
    assert POLICY.wait_s(LLMError("x", "RATE_LIMIT", retry_after_s=1.5), 1, 0.0) == 1.5
    assert POLICY.wait_s(LLMError("x", "SERVER", retry_after_s=60.0), 5, 0.0) == 60.0


def test_y05_a_wish_above_the_cap_is_no_retry() -> None:
    assert POLICY.wait_s(LLMError("x", "RATE_LIMIT", retry_after_s=60.1), 1, 0.0) is None


class Attempts:
    """Fails with each error in turn, then succeeds; `run` gives the result or the error, with all waits."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.count = 0
        self.waits: list[float] = []
        self.told: list[tuple[int, float, str]] = []
        self.told_before_wait: list[int] = []

    async def attempt(self) -> str:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.told_before_wait.append(len(self.told))
        self.waits.append(seconds)

    async def run(self, policy: RetryPolicy = POLICY, rng: Callable[[], float] = lambda: 0.5) -> str:
        return await call_with_retry(
            self.attempt,
            policy,
            on_retry=lambda number, delay, error: self.told.append((number, delay, error.code)),
            sleep=self.sleep,
            rng=rng,
        )


def failures(*codes: str) -> list[LLMError]:
    return [LLMError("x", code) for code in codes]


async def test_success_needs_no_wait() -> None:
    attempts = Attempts()
    assert await attempts.run() == "done"
    assert (attempts.count, attempts.waits, attempts.told) == (1, [], [])


async def test_two_failures_then_success() -> None:
    attempts = Attempts(*failures("SERVER", "TIMEOUT"))
    assert await attempts.run() == "done"
    assert (attempts.count, attempts.waits) == (3, [0.5, 1.0])
    assert attempts.told == [(1, 0.5, "SERVER"), (2, 1.0, "TIMEOUT")]


async def test_y16_what_is_told_before_each_wait_is_what_is_waited() -> None:
    dice = iter([0.1, 0.9, 0.3])
    attempts = Attempts(*failures("SERVER", "SERVER", "SERVER"))
    await attempts.run(rng=lambda: next(dice))
    assert attempts.waits == [delay for _, delay, _ in attempts.told]
    assert attempts.told_before_wait == [1, 2, 3]


async def test_y09_limit_raises_the_last_error() -> None:
    errors = failures("SERVER", "TIMEOUT", "TRANSPORT")
    attempts = Attempts(*errors)
    with pytest.raises(LLMError) as caught:
        await attempts.run(RetryPolicy(max_retries=2))
    assert caught.value is errors[2]
    assert (attempts.count, [number for number, *_ in attempts.told]) == (3, [1, 2])


async def test_default_is_six_attempts() -> None:
    attempts = Attempts(*failures(*["SERVER"] * 9))
    with pytest.raises(LLMError):
        await attempts.run()
    assert (attempts.count, sum(attempts.waits)) == (6, 15.5)


@pytest.mark.parametrize("error", [TokenLimitExceeded("spent"), KeyError("bug"), *failures("AUTH", "QUOTA")], ids=repr)
async def test_other_errors_come_out_at_once_and_unchanged(error: Exception) -> None:
    for before in ([], failures("SERVER")):
        attempts = Attempts(*before, error)
        with pytest.raises(type(error)) as caught:
            await attempts.run()
        assert caught.value is error
        assert attempts.count == len(before) + 1


async def test_y11_cancelled_wait_ends_at_once() -> None:
    attempts = Attempts(*failures("SERVER", "SERVER"))
    waiting = asyncio.Event()

    async def sleep(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    work = asyncio.ensure_future(call_with_retry(attempts.attempt, POLICY, on_retry=lambda *_: None, sleep=sleep))
    await waiting.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert attempts.count == 1


# -- unwrapping -------------------------------------------------------------------------------------------------------


def wrapped(error: BaseException, times: int) -> BaseException:
    """The error after `times` nested tenacity retries of a caller."""

    def fail() -> None:
        raise error

    call: Any = fail
    for _ in range(times):
        call = retry(stop=stop_after_attempt(2))(call)
    try:
        call()
    except BaseException as caught:
        return caught
    raise AssertionError("unreachable")


@pytest.mark.parametrize("times", range(4))
def test_token_limit_is_found_inside_any_number_of_retry_errors(times: int) -> None:
    limit = TokenLimitExceeded("spent")
    outer = wrapped(limit, times)
    assert isinstance(outer, RetryError) == bool(times)
    assert unwrap_retry_error(outer) is limit


def test_a_cause_is_looked_into() -> None:
    limit = TokenLimitExceeded("spent")
    outer = RuntimeError("agent failed")
    outer.__cause__ = wrapped(limit, 2)
    assert unwrap_retry_error(outer) is limit


def test_other_errors_are_left_alone() -> None:
    plain = ValueError("x")
    plain.__cause__ = KeyError("y")
    ours = LLMError("x", "SERVER")
    ours.__cause__ = wrapped(TokenLimitExceeded("spent"), 1)
    assert unwrap_retry_error(plain) is plain
    assert unwrap_retry_error(ours) is ours


def test_a_circle_of_causes_ends() -> None:
    outer = RuntimeError("x")
    outer.__cause__ = wrapped(outer, 1)
    assert isinstance(unwrap_retry_error(outer), RuntimeError | RetryError)


# -- through the client -----------------------------------------------------------------------------------------------


async def test_y06_identical_bodies_and_two_records(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord], waits: list[float]
) -> None:
    llm, server = await make_llm([status(503), status(503), reply("ok")])
    assert await llm.ask("hi", ctx=ctx) == "ok"
    assert len({request.body for request in server.chats}) == 1
    told = [record.event for record in events if isinstance(record.event, Retrying)]
    assert [(event.attempt, event.code) for event in told] == [(2, "SERVER"), (3, "SERVER")]
    assert [event.delay_s for event in told] == waits
    assert 0.45 <= waits[0] <= 0.55 < 0.9 <= waits[1] <= 1.1


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (401, "Incorrect API key provided", "AUTH"),
        (403, "Country not supported", "AUTH"),
        (404, "The model `x` does not exist", "UNKNOWN_MODEL"),
        (429, "You exceeded your current quota", "QUOTA"),
        (402, "Insufficient Balance", "QUOTA"),
        (400, "messages: bad", "INVALID_REQUEST"),
        (400, "maximum context length is 10 tokens", "CONTEXT_WINDOW_EXCEEDED"),
    ],
)
async def test_y07_defect_07_one_request_for_errors_that_stay(
    code: int, message: str, expected: str, make_llm: MakeLLM, waits: list[float]
) -> None:
    llm, server = await make_llm([status(code, message=message)])
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert (caught.value.code, len(server.chats), waits) == (expected, 1, [])
    assert caught.value.hint or expected == "INVALID_REQUEST"


async def test_defect_08_retry_after_is_waited_exactly(make_llm: MakeLLM, waits: list[float]) -> None:
    llm, _ = await make_llm([status(429, headers={"retry-after": "1"}), reply("ok")])
    assert await llm.ask("hi") == "ok"
    assert waits == [1.0]


async def test_y05_defect_08_long_waits_are_told_and_not_waited(make_llm: MakeLLM, waits: list[float]) -> None:
    llm, server = await make_llm([status(429, headers={"retry-after": "3600"})])
    with pytest.raises(LLMError) as caught:
        await llm.ask("hi")
    assert (len(server.chats), waits) == (1, [])
    assert "asks to wait 3600 s" in caught.value.hint


async def test_y08_only_the_finished_attempt_becomes_the_answer(
    make_llm: MakeLLM, ctx: RunContext, events: list[EventRecord]
) -> None:
    llm, _ = await make_llm([cut_after(reply(stream_pieces=("a", "b", "c")), events=4), reply("whole")])
    assert await llm.ask("hi", ctx=ctx) == "whole"
    shown = [(record.event.text, record.event.attempt) for record in events if record.event.type == "text_delta"]  # type: ignore[union-attr]
    assert shown == [("a", 1), ("b", 1), ("c", 1), ("whole", 2)]


async def test_o02_defect_06_token_limit_stops_in_milliseconds_without_a_request(
    make_llm: MakeLLM, waits: list[float]
) -> None:
    llm, server = await make_llm([])
    llm.counter.text("warm up")
    ctx = RunContext(ledger=Ledger(max_tokens=3))
    started = asyncio.get_running_loop().time()
    with pytest.raises(TokenLimitExceeded):
        await llm.ask("a question that is longer than three tokens", ctx=ctx)
    assert asyncio.get_running_loop().time() - started < 0.1
    assert (server.chats, waits, ctx.ledger.requests) == ([], [], 0)


async def test_y15_w24_a_bare_stream_is_one_request(make_llm: MakeLLM) -> None:
    llm, server = await make_llm([status(503)])
    with pytest.raises(LLMError) as caught:
        await chunks_of(llm._service.adapter("main"), ask("hi"))  # type: ignore[reportPrivateUsage]
    assert (caught.value.code, len(server.chats)) == ("SERVER", 1)

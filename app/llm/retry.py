"""When a failed model call is tried again and how long to wait; tenacity runs the loop, the error's code decides.

The one retry loop of the product: SDK and transport retries are off. Never retried: spent budgets, bad keys,
used-up quota, bad requests, overflow (`RETRIED_CODES` in `schema/errors.py` lists what is).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception
from tenacity.stop import stop_after_attempt

from app.schema.errors import RETRIED_CODES, ConfigError, DragomanError, LLMError

T = TypeVar("T")

LONGEST_DELAY_S = 2_147_483.647


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Up to `max_retries` further attempts for `codes`, waiting exponentially from `initial_delay_s`.

    The n-th wait is `initial * 2^(n-1)`, at most `max_delay_s`, spread by ±`jitter`. A provider's own request to
    wait is obeyed exactly up to `retry_after_cap_s`; above it the call fails at once and says how long it was asked
    to wait. Raises `ConfigError` for values that make no sense.
    """

    max_retries: int = 5
    initial_delay_s: float = 0.5
    max_delay_s: float = 10.0
    jitter: float = 0.1
    retry_after_cap_s: float = 60.0
    codes: frozenset[str] = field(default=RETRIED_CODES)

    def __post_init__(self) -> None:
        if isinstance(self.max_retries, bool) or not isinstance(self.max_retries, int) or self.max_retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"max_retries must be 0 or more, not {self.max_retries!r}")
        for name in ("initial_delay_s", "max_delay_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not math.isfinite(value) or not 0 < value <= LONGEST_DELAY_S:
                raise ConfigError(f"{name} must be a positive number of seconds, not {value!r}")
        if self.initial_delay_s > self.max_delay_s:
            raise ConfigError("initial_delay_s must not exceed max_delay_s")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"jitter must be between 0 and 1, not {self.jitter!r}")
        if not self.codes or not all(self.codes):
            raise ConfigError("the list of retried codes must not be empty or hold empty codes")

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> RetryPolicy:
        """A policy from plain settings; unknown keys are a `ConfigError`."""
        known = {"max_retries", "initial_delay_s", "max_delay_s", "jitter", "retry_after_cap_s", "codes"}
        if unknown := set(values) - known:
            raise ConfigError(f"unknown retry setting: {', '.join(sorted(unknown))}", hint=f"known: {', '.join(sorted(known))}")
        return cls(**values)  # pyright: ignore[reportArgumentType]

    def delay_s(self, retry: int, random_value: float) -> float:
        """The local wait before retry number `retry` (1, 2, …); `random_value` in [0, 1] picks the jitter."""
        base = min(self.initial_delay_s * 2.0 ** min(retry - 1, 60), self.max_delay_s)
        return min(base * (1 - self.jitter + 2 * self.jitter * random_value), self.max_delay_s)

    def wait_s(self, error: LLMError, retry: int, random_value: float) -> float | None:
        """How long to wait after `error` before retry number `retry`, or None when it is not retried."""
        if error.code not in self.codes or retry > self.max_retries:
            return None
        asked = error.failure.retry_after_s
        if asked is None:
            return self.delay_s(retry, random_value)
        return asked if asked <= self.retry_after_cap_s else None


Sleep = Callable[[float], Awaitable[None]]
OnRetry = Callable[[int, float, LLMError], None]


async def call_with_retry(
    attempt: Callable[[int], Awaitable[T]],
    policy: RetryPolicy,
    *,
    on_retry: OnRetry,
    sleep: Sleep = asyncio.sleep,
    rng: Callable[[], float] = random.random,
) -> T:
    """Run `attempt(n)` for n = 1, 2, … until it succeeds or its error is not to be retried; that error is raised.

    `on_retry(next_attempt, delay_s, error)` is called before each wait.
    """
    waits: dict[int, float | None] = {}

    def wait_after(state: RetryCallState) -> float | None:
        number = state.attempt_number
        if number not in waits:
            error = state.outcome.exception() if state.outcome else None
            waits[number] = policy.wait_s(error, number, rng()) if isinstance(error, LLMError) else None
        return waits[number]

    class _Retryable(retry_if_exception):
        def __call__(self, retry_state: RetryCallState) -> bool:
            return wait_after(retry_state) is not None

    def announce(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert isinstance(error, LLMError)
        on_retry(state.attempt_number + 1, wait_after(state) or 0.0, error)

    loop = AsyncRetrying(
        retry=_Retryable(lambda _: True),
        wait=lambda state: wait_after(state) or 0.0,
        stop=stop_after_attempt(policy.max_retries + 1),
        before_sleep=announce,
        sleep=sleep,
        reraise=True,
    )
    async for state in loop:
        with state:
            result = await attempt(state.retry_state.attempt_number)
        outcome = state.retry_state.outcome
        if outcome is None or not outcome.failed:
            state.retry_state.set_result(result)  # pyright: ignore[reportPossiblyUnboundVariable]
            return result  # pyright: ignore[reportPossiblyUnboundVariable]
    raise AssertionError("unreachable: the loop returns or raises")


def unwrap_retry_error(error: BaseException) -> BaseException:
    """The error that matters inside tenacity's `RetryError` (however deep, also as a cause); others unchanged.

    The one unwrapping place: callers that wrap our calls in a retry of their own still see `TokenLimitExceeded`.
    """
    seen: set[int] = set()
    while isinstance(error, RetryError) and id(error) not in seen:
        seen.add(id(error))
        inner = error.last_attempt.exception() or error.__cause__
        if inner is None:
            break
        error = inner
    if not isinstance(error, DragomanError) and isinstance(error.__cause__, DragomanError | RetryError):
        return unwrap_retry_error(error.__cause__)
    return error

"""When a failed model call is tried again and how long to wait; tenacity runs the loop, the error's code decides.

The one retry loop of the product: SDK and transport retries are off. Never retried: spent budgets, bad keys,
used-up quota, bad requests, overflow (`RETRIED_CODES` in `schema/errors.py` lists what is).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, RetryError, stop_never

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
        _check_count("max_retries", self.max_retries)
        for name, value, lowest in (
            ("initial_delay_s", self.initial_delay_s, 1e-9),
            ("max_delay_s", self.max_delay_s, 1e-9),
            ("retry_after_cap_s", self.retry_after_cap_s, 0.0),
        ):
            if isinstance(value, bool) or not lowest <= value <= LONGEST_DELAY_S:
                raise ConfigError(f"{name} must be a number of seconds from {lowest:g}, not {value!r}")
        if self.initial_delay_s > self.max_delay_s:
            raise ConfigError("initial_delay_s must not exceed max_delay_s")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"jitter must be between 0 and 1, not {self.jitter!r}")
        if not self.codes or not all(self.codes):
            raise ConfigError("the set of retried codes must not be empty or hold an empty code")

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
    attempt: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    on_retry: OnRetry,
    sleep: Sleep = asyncio.sleep,
    rng: Callable[[], float] = random.random,
) -> T:
    """Run `attempt()` until it succeeds or its error is not to be retried; that error is raised as it is.

    `on_retry(retry, delay_s, error)` is called before each wait, with `retry` = 1, 2, …
    """
    # Nearly every call succeeds at once and is spared tenacity's machinery: its first attempt is the failure we have.
    try:
        return await attempt()
    except LLMError as error:
        failed: LLMError | None = error
    wait_s: float | None = None

    async def further() -> T:
        nonlocal failed
        if failed is None:
            return await attempt()
        first, failed = failed, None
        raise first

    def is_retried(state: RetryCallState) -> bool:
        # The one decision after a failure: the jitter is a throw of dice, so it is not made twice.
        nonlocal wait_s
        error = _error_of(state)
        wait_s = policy.wait_s(error, state.attempt_number, rng()) if isinstance(error, LLMError) else None
        return wait_s is not None

    def announce(state: RetryCallState) -> None:
        error = _error_of(state)
        assert isinstance(error, LLMError)
        on_retry(state.attempt_number, wait_s or 0.0, error)

    loop = AsyncRetrying(
        retry=is_retried,
        wait=lambda _state: wait_s or 0.0,
        stop=stop_never,
        before_sleep=announce,
        sleep=sleep,
        reraise=True,
    )
    return await loop(further)


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name} must be a whole number from 0, not {value!r}")


def unwrap_retry_error(error: BaseException) -> BaseException:
    """The error that matters inside tenacity's `RetryError` (however deep, also as a cause); others unchanged.

    The one unwrapping place: callers that wrap our calls in a retry of their own still see `TokenLimitExceeded`.
    """
    seen: set[int] = set()
    while id(error) not in seen and not isinstance(error, DragomanError):
        seen.add(id(error))
        if isinstance(error, RetryError):
            inner = error.last_attempt.exception() or error.__cause__
        else:
            inner = error.__cause__ if isinstance(error.__cause__, DragomanError | RetryError) else None
        if inner is None:
            break
        error = inner
    return error

"""The rate governor: strict limits nearly used up and hardly ever broken, fairness, pauses for all, and no leak."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.settings import RateSettings
from app.llm.governor import Governor, Slot, governor_for, report
from tests.llm.virtual import run_virtual

AGENTS = 500


def now() -> float:
    return asyncio.get_running_loop().time()


class Strict(Protocol):
    """A provider's counting. `admit()` at the arrival of a request: (whether it is allowed, headers of the reply)."""

    limit: int

    def admit(self) -> tuple[bool, dict[str, str]]: ...


class FixedWindow:
    """So many a window, which begins anew on the clock."""

    def __init__(self, limit: int, seconds: float = 60.0, *, headers: bool = True) -> None:
        self.limit, self.seconds, self.headers = limit, seconds, headers
        self.window, self.used = -1, 0

    def admit(self) -> tuple[bool, dict[str, str]]:
        window = int(now() // self.seconds)
        if window != self.window:
            self.window, self.used = window, 0
        allowed = self.used < self.limit
        self.used += allowed
        reset = (window + 1) * self.seconds - now()
        told = {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.limit - self.used),
            "x-ratelimit-reset-requests": f"{reset * 1000:.0f}ms",
        }
        if not allowed:
            told["retry-after"] = f"{reset:.3f}"
        return allowed, told if self.headers else {}


class Bucket:
    """A token bucket, as OpenAI and Anthropic have them: it fills up bit by bit."""

    def __init__(self, limit: int, seconds: float = 60.0) -> None:
        self.limit, self.rate = limit, limit / seconds
        self.level, self.at = float(limit), now()

    def admit(self) -> tuple[bool, dict[str, str]]:
        self.level = min(self.limit, self.level + (now() - self.at) * self.rate)
        self.at = now()
        allowed = self.level >= 1
        self.level -= allowed
        told = {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(int(self.level)),
            "x-ratelimit-reset-requests": f"{(self.limit - self.level) / self.rate:.3f}s",
        }
        return allowed, told


class Sliding:
    """So many in any minute, and it tells nothing: only the configuration knows."""

    def __init__(self, limit: int, seconds: float = 60.0) -> None:
        self.limit, self.seconds = limit, seconds
        self.log: deque[float] = deque()

    def admit(self) -> tuple[bool, dict[str, str]]:
        while self.log and self.log[0] <= now() - self.seconds:
            self.log.popleft()
        allowed = len(self.log) < self.limit
        if allowed:
            self.log.append(now())
        return allowed, {}


async def crowd(governor: Governor, strict: Strict, minutes: float, seed: int = 1) -> tuple[int, int]:
    """500 agents that ask again and again for some minutes: (answered, refused)."""
    dice = random.Random(seed)
    end = now() + minutes * 60
    answered = refused = 0

    async def agent(name: str) -> None:
        nonlocal answered, refused
        while now() < end:
            async with governor.slot(name) as slot:
                if now() >= end:
                    return
                await asyncio.sleep(dice.uniform(0.005, 0.05))
                allowed, headers = strict.admit()
                await asyncio.sleep(dice.uniform(0.005, 0.05))
                report(headers, refused=not allowed)
                if allowed:
                    answered += 1
                    await asyncio.sleep(dice.uniform(0.1, 2.0))
                else:
                    refused += 1
                    slot.refused(float(headers["retry-after"]) if "retry-after" in headers else None)

    await asyncio.gather(*(agent(f"agent-{number}") for number in range(AGENTS)))
    return answered, refused


@pytest.mark.parametrize(
    ("make", "rate"),
    [
        pytest.param(lambda: Bucket(1_000), None, id="bucket, by its headers"),
        pytest.param(lambda: FixedWindow(1_000), None, id="fixed window, by its headers"),
        pytest.param(lambda: Bucket(100), None, id="narrow bucket, by its headers"),
        pytest.param(lambda: FixedWindow(100), None, id="narrow window, by its headers"),
        pytest.param(lambda: Bucket(1_000), 1_000, id="bucket, configured"),
        pytest.param(lambda: FixedWindow(1_000, headers=False), 1_000, id="fixed window, configured"),
        pytest.param(lambda: Sliding(1_000), 1_000, id="sliding window, configured"),
    ],
)
def test_500_agents_use_a_strict_limit_and_are_hardly_ever_refused(
    make: Callable[[], Strict], rate: int | None
) -> None:
    minutes = 3

    async def scenario() -> tuple[int, int, int]:
        strict = make()
        governor = Governor(RateSettings(requests_per_minute=rate), probe=True)
        return *await crowd(governor, strict, minutes), strict.limit

    (answered, refused, limit), _ = run_virtual(scenario())
    assert answered >= 0.95 * limit * minutes
    assert refused < 0.01 * answered


def test_agents_take_turns_and_each_keeps_its_order() -> None:
    async def scenario() -> list[str]:
        governor, order = Governor(RateSettings(max_concurrency=1)), list[str]()

        async def ask(agent: str, number: int) -> None:
            async with governor.slot(agent):
                order.append(f"{agent}{number}")
                await asyncio.sleep(1)

        wanted = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]
        await asyncio.gather(*(ask(agent, number) for agent, number in wanted))
        return order

    order, took = run_virtual(scenario())
    assert (order, took) == (["a1", "a2", "b1", "c1", "a3", "b2"], 6.0)


def test_a_refusal_with_a_wait_makes_all_agents_of_the_account_wait() -> None:
    async def scenario() -> list[float]:
        governor, begun, started = Governor(), now(), list[float]()
        async with governor.slot("a") as slot:
            slot.refused(30.0)

        async def ask(agent: str) -> None:
            async with governor.slot(agent):
                started.append(now() - begun)

        await asyncio.gather(ask("a"), ask("b"), ask("c"))
        return started

    assert run_virtual(scenario())[0] == [30.0, 30.0, 30.0]


def test_a_refusal_without_a_word_halves_what_goes_out_at_a_time() -> None:
    async def scenario() -> tuple[int, int]:
        governor, running, most = Governor(), 0, 0
        slots = [governor.slot(f"a{number}") for number in range(8)]
        for slot in slots:
            await slot.__aenter__()
        for slot in slots:
            slot.refused(None)
        for slot in reversed(slots):
            await slot.__aexit__(None, None, None)

        async def ask(number: int) -> None:
            nonlocal running, most
            async with governor.slot(f"b{number}"):
                running += 1
                most = max(most, running)
                await asyncio.sleep(1)
                running -= 1

        first = asyncio.gather(*(ask(number) for number in range(20)))
        await asyncio.sleep(0.5)
        begun = most
        await first
        return begun, most

    (begun, most), _ = run_virtual(scenario())
    assert begun == 4
    assert 4 < most <= 8


def test_an_unknown_account_is_probed_with_few_requests_until_it_tells_its_limits() -> None:
    async def scenario() -> tuple[int, int]:
        governor, out = Governor(probe=True), 0
        told = asyncio.Event()

        async def ask(number: int) -> None:
            nonlocal out
            async with governor.slot(f"a{number}"):
                out += 1
                left = 10 - out
                await told.wait()
                report({"x-ratelimit-remaining-requests": str(left), "x-ratelimit-reset-requests": "1m0s"})
                await asyncio.sleep(1)

        tasks = [asyncio.ensure_future(ask(number)) for number in range(20)]
        await asyncio.sleep(1)
        before = out
        told.set()
        await asyncio.sleep(1.5)
        after = out
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return before, after

    (before, after), _ = run_virtual(scenario())
    assert before == 4
    assert after == 10


def test_tokens_of_a_minute_are_counted_and_corrected_by_real_usage() -> None:
    async def scenario() -> list[float]:
        governor = Governor(RateSettings(tokens_per_minute=1_000))
        begun, started = now(), list[float]()
        for real in (100, 600, 600):
            async with governor.slot("a", tokens=400) as slot:
                started.append(round(now() - begun, 1))
                slot.used(real)
        async with governor.slot("a", tokens=5_000):
            started.append(round(now() - begun, 1))
        return started

    # 100 + 600 leave 300, so the third waits for the window; one that is larger than the limit goes out alone.
    assert run_virtual(scenario())[0] == [0.0, 0.0, 61.2, 122.4]


@pytest.mark.parametrize("granted", [False, True])
def test_a_cancelled_request_leaves_nothing_behind(granted: bool) -> None:
    async def scenario() -> tuple[int, float]:
        governor = Governor(RateSettings(requests_per_minute=2, max_concurrency=1))
        begun = now()
        first = governor.slot("a")
        await first.__aenter__()

        async def ask() -> None:
            async with governor.slot("b"):
                await asyncio.sleep(0)

        waiting = asyncio.ensure_future(ask())
        await asyncio.sleep(0)
        if granted:
            await first.__aexit__(None, None, None)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if not granted:
            await first.__aexit__(None, None, None)
        async with governor.slot("c"):
            return governor.waiting, now() - begun

    assert run_virtual(scenario())[0] == (0, 0.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from(["end", "fail", "cancel", "refused"])),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_any_interleaving_keeps_the_limits_and_lets_everybody_out(
    plan: list[tuple[int, int, str]], width: int, per_minute: int
) -> None:
    async def scenario() -> None:
        governor = Governor(RateSettings(max_concurrency=width, requests_per_minute=per_minute))
        running, started, done = 0, list[float](), 0

        async def ask(agent: int, steps: int, how: str) -> None:
            nonlocal running, done
            async with governor.slot(str(agent)) as slot:
                running += 1
                started.append(now())
                try:
                    assert running <= width
                    await asyncio.sleep(steps)
                    if how == "refused":
                        slot.refused(float(steps) or None)
                    if how == "fail":
                        raise ValueError
                finally:
                    running -= 1
                done += 1

        tasks = [asyncio.ensure_future(ask(*each)) for each in plan]
        await asyncio.sleep(1)
        for task, (_, _, how) in zip(tasks, plan, strict=True):
            if how == "cancel":
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, ValueError | asyncio.CancelledError) or each is None for each in results)
        assert (running, governor.waiting) == (0, 0)
        for start in started:
            assert sum(start <= other < start + 60 for other in started) <= per_minute

    run_virtual(scenario())


def test_a_long_wait_is_told_once() -> None:
    async def scenario() -> int:
        governor, told = Governor(RateSettings(max_concurrency=1)), 0

        def tell() -> None:
            nonlocal told
            told += 1

        async def ask(seconds: float) -> None:
            async with governor.slot("a", on_wait=tell):
                await asyncio.sleep(seconds)

        await asyncio.gather(ask(1.5), ask(0.1))
        assert told == 0
        await asyncio.gather(ask(30), ask(0.1))
        return told

    assert run_virtual(scenario())[0] == 1


def test_one_governor_an_account() -> None:
    def of(vendor: str = "v", url: str = "https://a.example/v1", key: str = "k") -> Governor:
        return governor_for(vendor, url, key, RateSettings(), local=False)

    kept = [of(), of("w"), of(url="https://b.example/v1"), of(key="other")]
    assert len({id(each) for each in kept}) == 4
    assert of(url="https://a.example/other/path") is kept[0]


def test_headers_without_a_slot_are_nobodys() -> None:
    report({"x-ratelimit-remaining-requests": "0"})


def test_a_slot_of_an_unlimited_account_never_waits() -> None:
    async def scenario() -> int:
        governor, slots = Governor(), list[Slot]()
        for number in range(1_000):
            slots.append(governor.slot(str(number)))
            await slots[-1].__aenter__()
        return governor.waiting

    assert run_virtual(scenario()) == (0, 0.0)

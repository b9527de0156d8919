"""How much of a strict rate limit 500 agents use, and how many of their requests are refused.

    python benchmarks/governor.py                  about 80 seconds
    python benchmarks/governor.py --agents 100 --seconds 20

A provider on loopback counts strictly, in minutes that last six seconds here: by a window that begins anew on its
clock, by a bucket that fills up bit by bit (both tell their limits in headers), and by a window that slides and tells
nothing, whose limit is configured. The same is asked without a governor, for comparison. Goals: at least 95 % of the
limit used, less than 1 % refused; the exit code is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.config.settings import LLMSettings, RateSettings, RetrySettings
from app.llm.governor import Governor
from app.llm.pool import LLMPool
from app.schema.errors import LLMError
from app.schema.run import RunContext

MINUTE_S = 6.0
REPLY = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-mini",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
    }
).encode()
REFUSAL = json.dumps({"error": {"message": "Rate limit reached for requests", "type": "requests"}}).encode()


class Strict(ABC):
    """A provider that counts; `admit` says whether a request is answered, and what its headers tell."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.answered = self.refused = 0

    @abstractmethod
    def admit(self, now: float) -> tuple[bool, dict[str, str]]: ...

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"get"):  # what a local server can do is asked once
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                length = head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
                await reader.readexactly(int(length))
                allowed, told = self.admit(time.monotonic())
                self.answered += allowed
                self.refused += not allowed
                await asyncio.sleep(0.02)
                body = REPLY if allowed else REFUSAL
                lines = [
                    f"HTTP/1.1 {'200 OK' if allowed else '429 Too Many Requests'}",
                    "content-type: application/json",
                    f"content-length: {len(body)}",
                    *(f"{name}: {value}" for name, value in told.items()),
                ]
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _headers(self, left: float, reset_s: float) -> dict[str, str]:
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(int(left)),
            "x-ratelimit-reset-requests": f"{reset_s * 1000:.0f}ms",
        }


class Window(Strict):
    begun, number, used = 0.0, -1, 0

    def admit(self, now: float) -> tuple[bool, dict[str, str]]:
        self.begun = self.begun or now
        if (number := int((now - self.begun) // MINUTE_S)) != self.number:
            self.number, self.used = number, 0
        allowed = self.used < self.limit
        self.used += allowed
        return allowed, self._headers(self.limit - self.used, self.begun + (number + 1) * MINUTE_S - now)


class Bucket(Strict):
    """Empty at the beginning, so that its limit is what flows in."""

    level, at = 1.0, 0.0

    def admit(self, now: float) -> tuple[bool, dict[str, str]]:
        rate = self.limit / MINUTE_S
        self.level, self.at = min(self.limit, self.level + (now - (self.at or now)) * rate), now
        allowed = self.level >= 1
        self.level -= allowed
        return allowed, self._headers(self.level, (self.limit - self.level) / rate)


class Sliding(Strict):
    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.log: deque[float] = deque()

    def admit(self, now: float) -> tuple[bool, dict[str, str]]:
        while self.log and self.log[0] <= now - MINUTE_S:
            self.log.popleft()
        if allowed := len(self.log) < self.limit:
            self.log.append(now)
        return allowed, {}


async def measure(strict: Strict, governor: Governor, agents: int, seconds: float) -> tuple[float, float, float]:
    """(share of the limit used, share refused, requests a second)"""
    server = await asyncio.start_server(strict.serve, "127.0.0.1", 0, backlog=agents)
    port = server.sockets[0].getsockname()[1]
    settings = LLMSettings(
        name="main",
        model="gpt-4o-mini",
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key="sk-bench",  # pyright: ignore[reportArgumentType]
        retry=RetrySettings(max_retries=0),
    )
    pool = LLMPool({"main": settings})
    llm = pool.get("main")
    llm._governor = governor  # pyright: ignore[reportPrivateUsage]  # its minute is as short as the server's
    begun = time.monotonic()

    async def agent() -> None:
        ctx = RunContext()
        while time.monotonic() < begun + seconds:
            try:
                await llm.ask("hi", ctx=ctx)
            except LLMError as error:
                if error.code != "RATE_LIMIT":
                    raise
                await asyncio.sleep(0.05)

    tasks = [asyncio.ensure_future(agent()) for _ in range(agents)]
    await asyncio.sleep(seconds)
    answered, refused = strict.answered, strict.refused
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    await pool.close()
    server.close()
    await asyncio.sleep(0.2)  # the server sees the ends of its connections
    return answered / (strict.limit * seconds / MINUTE_S), refused / max(1, answered + refused), answered / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description="How much of a strict rate limit many agents use.")
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--limit", type=int, default=600, help="requests in each of the short minutes")
    parser.add_argument("--seconds", type=float, default=18.0)
    options = parser.parse_args()
    rate = RateSettings(requests_per_minute=options.limit)
    cases = (
        ("window, by headers", Window, Governor(probe=True, minute_s=MINUTE_S), True),
        ("bucket, by headers", Bucket, Governor(probe=True, minute_s=MINUTE_S), True),
        ("sliding, configured", Sliding, Governor(rate, minute_s=MINUTE_S), True),
    )
    failed = False
    print(f"{options.agents} agents, {options.limit} requests in each minute of {MINUTE_S:g} s")
    print(f"{'limit':<24}{'used':>8}{'refused':>10}{'requests/s':>12}")
    for name, kind, governor, judged in cases:
        used, refused, speed = asyncio.run(measure(kind(options.limit), governor, options.agents, options.seconds))
        good = used >= 0.95 and refused < 0.01
        failed |= judged and not good
        print(f"{name:<24}{used:>8.1%}{refused:>10.2%}{speed:>12.0f}  {'PASS' if good else 'FAIL'}")
    used, refused, speed = asyncio.run(measure(Sliding(options.limit), _Open(), options.agents, options.seconds))
    print(f"{'sliding, no governor':<24}{used:>8.1%}{refused:>10.2%}{speed:>12.0f}")
    return 1 if failed else 0


class _Open(Governor):
    """No governor at all: refusals are not heard."""

    def refused(self, slot: object, wait_s: float | None) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())

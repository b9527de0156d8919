"""One governor an account: how many requests and tokens go out, when, and in which order, for all agents of a process.

It knows limits from the configuration, from the headers of replies and from refusals. Retrying is `retry.py`'s matter,
money `budget.py`'s.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Protocol
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from app.llm.rate_headers import Counted, Seen, seen_limits

MINUTE_S = 60.0
MARGIN = 0.02
"""A window is taken as so much longer than it is, because requests travel unevenly."""
BURST = 0.1
LEAST_BURST = 5
HASTE = 1.2
"""A tenth of a minute's requests, or five, may go out at once, the others at 1.2 times the long-run pace at most."""
PROBE = 4
"""Requests at a time to an account of which nothing is known, until its first reply has told its limits."""
DOUBT = 1.0
"""While nobody knows whether a limit flows, a request waits for so much more than a flow would need."""
OVERTAKEN_S = 5.0
"""A request may overtake one that went out so much earlier."""
SAY_AFTER_S = 2.0
"""A wait that is longer than this is told."""


class _Window:
    """At most `limit` in any stretch of `seconds`: whatever way a server counts a minute, that stays below it.

    `paced`: beyond a burst of a tenth, not much faster than the limit in the long run, because a crowd that sets out at
    once arrives as it likes, and because some servers count seconds where they speak of minutes.
    """

    __slots__ = ("entries", "limit", "paced", "seconds", "total", "worked_off_at")

    def __init__(self, limit: float, seconds: float, *, paced: bool) -> None:
        self.limit = limit
        self.seconds = seconds * (1 + MARGIN)
        self.paced = paced
        self.entries: deque[list[float]] = deque()
        self.total = 0.0
        self.worked_off_at = 0.0

    def ready_at(self, now: float, amount: float) -> float:
        while self.entries and self.entries[0][0] + self.seconds <= now:
            gone = self.entries.popleft()
            self.total -= gone[1]
            gone[0] = -math.inf
        over = self.total + min(amount, self.limit) - self.limit
        when = now
        for started, taken in self.entries:
            if over <= 0:
                break
            over -= taken
            when = started + self.seconds
        if not self.paced:
            return when
        return max(when, self.worked_off_at - self.seconds * max(BURST, LEAST_BURST / self.limit) / HASTE)

    def take(self, now: float, amount: float) -> list[float]:
        self.worked_off_at = max(self.worked_off_at, now) + amount * self.seconds / self.limit / HASTE
        entry = [now, amount]
        self.entries.append(entry)
        self.total += amount
        return entry

    def correct(self, entry: list[float], amount: float) -> None:
        if entry[0] > -math.inf:  # an entry that has left the window counts no more
            self.total += amount - entry[1]
            entry[1] = amount


class _Level:
    """What is left of a limit by the vendor's own word, carried on by what went out since.

    `flows`: the limit fills up bit by bit (a token bucket) instead of all at once when its time is over; None = not
    known yet, which one early request finds out.
    """

    __slots__ = (
        "at", "began", "doubts", "flows", "full_at", "least", "left", "limit", "newest", "per_s", "since", "sure_until",
        "told",
    )  # fmt: skip

    def __init__(self) -> None:
        self.limit = math.inf
        self.left = math.inf
        self.least = math.inf
        """The smallest word since the limit was whole: with nothing under way, exactly that is left."""
        self.at = 0.0
        self.began = -math.inf
        self.full_at = 0.0
        self.per_s = 0.0
        self.flows: bool | None = None
        self.sure_until = 0.0
        self.doubts = 0
        self.newest = 0
        self.since = 0.0
        self.told = (math.inf, 0.0, 0.0)

    def saw(self, seen: Seen, slot: Slot, now: float, *, after: float, untold: float, refused: bool) -> None:
        """A reply's word. `after` had perhaps not arrived when the vendor counted its request; of `untold` there is no
        reply yet. Replies overtake each other, so that only what is left for sure counts.
        """
        known = self._left(now)
        if not refused:
            self._notice_flow(seen, slot, now)
        latest = slot.number >= self.newest or seen.remaining <= self.least
        if slot.started >= self.began:
            self.least = min(self.least, seen.remaining)
        sure = max(seen.remaining - after, min(self.least, seen.remaining) - untold)
        self.left = sure if latest or math.isinf(known) else max(known, sure)
        self.at = now
        if not latest:
            return
        self.newest = max(self.newest, slot.number)
        self.since = max(0.0, min(after, seen.remaining - self.least + untold))
        self.limit = max(seen.limit or (self.limit if math.isfinite(self.limit) else 0.0), seen.remaining)
        missing, reset = self.limit - seen.remaining, seen.reset_s
        self.per_s = missing / reset if reset and missing > 0 else self.limit / MINUTE_S
        self.full_at = now + (missing / self.per_s if reset is None and self.per_s else reset or 0.0)

    def _notice_flow(self, seen: Seen, slot: Slot, now: float) -> None:
        """A request that began after a reply had come is told no less than that reply: some came back in between.

        That proves a flow unless the time of the limit was over meanwhile; it was told in the reply, which took a while
        to come.
        """
        before, at, took = self.told
        if seen.counted == "requests" and slot.started > at and seen.remaining >= before and now < self.full_at - took:
            self.flows = True
        self.told = (seen.remaining, now, now - slot.started)

    def ready_at(self, now: float, amount: float) -> float:
        if math.isinf(self.limit):
            return now
        amount = min(amount, self.limit)
        left = self._left(now)
        if left >= amount:
            return now
        if self.flows is False and now >= self.sure_until:
            self.flows = None
        flowed_s = min(amount - left, self.limit) / self.per_s if self.per_s else math.inf
        if self.flows:
            return self.at + flowed_s
        if not self.full_at:
            return math.inf  # a reply will tell
        return self.full_at if self.flows is False else min(self.full_at, self.at + flowed_s * (1 + DOUBT))

    def take(self, now: float, amount: float) -> bool:
        """Whether it is taken from what flowed in, or may have."""
        if math.isinf(self.limit):
            return False
        left = self._left(now)
        self.left, self.at = left - amount, now
        self.since += amount
        return self.flows is True or left < amount

    def did_not_flow(self, now: float) -> None:
        """What was taken from a flow was refused: believe in none for its time, then for twice as long, and so on."""
        self.flows = False
        self.sure_until = max(self.full_at, now + 1) + (max(self.full_at, now + 1) - now) * (2**self.doubts - 1)
        self.doubts += 1

    def _left(self, now: float) -> float:
        if now >= self.full_at and self.full_at:
            # Its time is over: whole again, once. In a bucket, what went out after the reply that told the time still
            # misses; at least one request goes out to hear how it stands.
            self.full_at = 0.0
            self.left, self.at = max(1.0, self.limit - self.since), now
            self.least, self.began = math.inf, now
        elif self.flows:
            gain = (now - self.at) * self.per_s
            self.left, self.at = min(self.limit, self.left + gain), now
            self.least = min(self.limit, self.least + gain)
        return self.left


class Slot:
    """A request that may go out: `async with governor.slot(...) as slot`."""

    def __init__(self, governor: Governor, agent: str, tokens: float, on_wait: Callable[[], None] | None) -> None:
        self.agent = agent
        self.tokens = tokens
        self.amounts: tuple[tuple[Counted, float], ...] = (("requests", 1), ("tokens", tokens))
        self.number = 0
        self.started = 0.0
        self.certain = (0.0, 0.0)
        """Requests and tokens that the vendor had certainly counted when this one went out."""
        self.was_refused = False
        self.trusting: set[Counted] = set()
        """The limits of which it took what may have flowed in."""
        self.entries: dict[Counted, list[float]] = {}
        self._governor = governor
        self._on_wait = on_wait
        self._token: Token[Slot | None] | None = None

    async def __aenter__(self) -> Slot:
        await self._governor.enter(self, self._on_wait)
        self._token = _CURRENT.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _CURRENT.reset(self._token)
        self._governor.leave(self)

    def saw(self, headers: Mapping[str, str], *, refused: bool = False) -> None:
        """The headers of the reply have come (names in lower case)."""
        self._governor.saw(self, headers, refused=refused)

    def used(self, tokens: int) -> None:
        """What the request took in truth, instead of the estimate."""
        self._governor.used(self, tokens)

    def refused(self, wait_s: float | None) -> None:
        """The vendor refused for its rate, and asks to wait (None: it does not say): all agents of the account wait."""
        self.was_refused = True
        self._governor.refused(self, wait_s)


_CURRENT: ContextVar[Slot | None] = ContextVar("slot", default=None)


def report(headers: Mapping[str, str], *, refused: bool = False) -> None:
    """For transports: the headers of a reply (names in lower case), for the account whose slot this task holds.

    `refused`: the request was turned away for its rate (HTTP 429).
    """
    slot = _CURRENT.get()
    if slot is not None:
        slot.saw(headers, refused=refused)


class Rate(Protocol):
    """What an account allows by the user's word; None = not said."""

    @property
    def requests_per_minute(self) -> int | None: ...
    @property
    def tokens_per_minute(self) -> int | None: ...
    @property
    def max_concurrency(self) -> int | None: ...


class Governor:
    """Lets requests of one account out. Cancel-safe; no polling; belongs to one event loop at a time.

    Agents take turns, requests of one agent keep their order, and nobody overtakes a request that is too big for now.
    `probe`: begin with few requests until a reply has told the limits.
    """

    def __init__(self, rate: Rate | None = None, *, probe: bool = False, minute_s: float = MINUTE_S) -> None:
        self._minute_s = minute_s
        self._windows: dict[Counted, _Window] = {}
        self._levels: dict[Counted, _Level] = {"requests": _Level(), "tokens": _Level()}
        self._most: int | None = None
        self._width = math.inf
        self._narrowed_at = -math.inf
        self._probing = probe
        self._running = 0
        self._started = 0
        self._untold: dict[int, Slot] = {}
        self._certain = (0.0, 0.0)
        self._sent = 0.0
        self._paused_until = 0.0
        self._queues: OrderedDict[str, deque[tuple[Slot, asyncio.Future[None]]]] = OrderedDict()
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        if rate is not None:
            self.limit(rate)

    def limit(self, rate: Rate) -> None:
        """Obey these limits too; of two for the same thing the smaller one counts."""
        told: tuple[tuple[Counted, int | None], ...] = (
            ("requests", rate.requests_per_minute),
            ("tokens", rate.tokens_per_minute),
        )
        for counted, limit in told:
            window = self._windows.get(counted)
            if limit is not None and (window is None or limit < window.limit):
                fresh = self._windows[counted] = _Window(limit, self._minute_s, paced=counted == "requests")
                if window is not None:
                    fresh.entries, fresh.total = window.entries, window.total
        if rate.max_concurrency is not None:
            self._most = min(rate.max_concurrency, self._most or rate.max_concurrency)

    @property
    def counts_tokens(self) -> bool:
        """Whether an estimate of a request's tokens matters: a limit is configured, or the vendor's is half used."""
        level = self._levels["tokens"]
        return "tokens" in self._windows or (math.isfinite(level.limit) and level.left < level.limit / 2)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def slot(self, agent: str, *, tokens: float = 0, on_wait: Callable[[], None] | None = None) -> Slot:
        """A slot for a request of `agent` with about so many tokens; `on_wait` is called once when the wait is long."""
        return Slot(self, agent, tokens, on_wait)

    async def enter(self, slot: Slot, on_wait: Callable[[], None] | None) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._queues and self._ready_at(now, slot) <= now:
            self._start(slot, now)
            return
        future = loop.create_future()
        self._queues.setdefault(slot.agent, deque()).append((slot, future))
        told = loop.call_later(SAY_AFTER_S, on_wait) if on_wait else None
        try:
            self._pump()
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._take_back(slot)
            else:
                self._forget(slot)
            raise
        finally:
            if told is not None:
                told.cancel()

    def leave(self, slot: Slot) -> None:
        self._running -= 1
        self._is_counted(slot)
        self._probing = False
        if not slot.was_refused:
            self._width += 1 / self._width
        self._pump()

    def saw(self, slot: Slot, headers: Mapping[str, str], *, refused: bool) -> None:
        now = asyncio.get_running_loop().time()
        self._is_counted(slot)
        for seen in seen_limits(headers):
            which = 0 if seen.counted == "requests" else 1
            sent, certain, own = (self._started, self._sent)[which], self._certain[which], slot.amounts[which][1]
            self._levels[seen.counted].saw(
                seen, slot, now, after=sent - slot.certain[which] - own, untold=sent - certain, refused=refused
            )
        if self._probing or self._queues:
            self._probing = False
            self._pump()

    def _is_counted(self, slot: Slot) -> None:
        """The vendor has certainly counted this request: a reply came, it ended, or it went out long ago."""
        if self._untold.pop(slot.number, None) is not None:
            requests, tokens = self._certain
            self._certain = (requests + 1, tokens + slot.tokens)

    def used(self, slot: Slot, tokens: int) -> None:
        entry = slot.entries.get("tokens")
        if entry is not None:
            self._windows["tokens"].correct(entry, tokens)

    def refused(self, slot: Slot, wait_s: float | None) -> None:
        now = asyncio.get_running_loop().time()
        for counted in slot.trusting:
            if self._levels[counted].flows is not False:
                self._levels[counted].did_not_flow(now)
        if wait_s is not None:
            self._paused_until = max(self._paused_until, now + wait_s)
        elif slot.started > self._narrowed_at and all(level.ready_at(now, 1) <= now for level in self._levels.values()):
            # No word of how long, and no known limit explains it: fewer at a time, then carefully more again. What was
            # under way before that says nothing new.
            self._width = max(1.0, min(self._width, self._running) / 2)
            self._narrowed_at = now

    def _ready_at(self, now: float, slot: Slot) -> float:
        """When the slot may start: now, later, or (infinite) when another one ends."""
        most = min(self._most or math.inf, self._width, PROBE if self._probing else math.inf)
        if self._running >= max(1, int(most) if math.isfinite(most) else self._running + 1):
            return math.inf
        told = max(self._levels[counted].ready_at(now, amount) for counted, amount in slot.amounts)
        if math.isinf(told) and not self._running:
            told = now  # nobody is left who could tell
        when = max(now, self._paused_until, told)
        for counted, amount in slot.amounts:
            if counted in self._windows:
                when = max(when, self._windows[counted].ready_at(now, amount))
        return when

    def _start(self, slot: Slot, now: float) -> None:
        self._running += 1
        self._started += 1
        self._sent += slot.tokens
        while self._untold and (oldest := next(iter(self._untold.values()))).started < now - OVERTAKEN_S:
            self._is_counted(oldest)
        slot.number, slot.started, slot.certain = self._started, now, self._certain
        self._untold[slot.number] = slot
        for counted, amount in slot.amounts:
            if self._levels[counted].take(now, amount):
                slot.trusting.add(counted)
            if counted in self._windows:
                slot.entries[counted] = self._windows[counted].take(now, amount)

    def _take_back(self, slot: Slot) -> None:
        """A slot that was given and never used."""
        for counted, entry in slot.entries.items():
            self._windows[counted].correct(entry, 0)
        self._levels["requests"].left += 1
        self._levels["tokens"].left += slot.tokens
        self._is_counted(slot)
        self._running -= 1
        self._pump()

    def _forget(self, slot: Slot) -> None:
        queue = self._queues.get(slot.agent, deque())
        first = bool(queue) and queue[0][0] is slot
        kept = deque(entry for entry in queue if entry[0] is not slot)
        if kept:
            self._queues[slot.agent] = kept
        else:
            self._queues.pop(slot.agent, None)
        if first:
            self._pump()

    def _pump(self) -> None:
        """Start whoever may start, agent by agent; set the clock for the next one."""
        if not self._queues:
            return
        now = asyncio.get_running_loop().time()
        while self._queues:
            agent, queue = next(iter(self._queues.items()))
            slot, future = queue[0]
            if future.done():
                self._drop_first(agent, queue)
                continue
            when = self._ready_at(now, slot)
            if when > now:
                self._wake_at(when)
                return
            self._drop_first(agent, queue)
            self._start(slot, now)
            future.set_result(None)

    def _drop_first(self, agent: str, queue: deque[tuple[Slot, asyncio.Future[None]]]) -> None:
        queue.popleft()
        if queue:
            self._queues.move_to_end(agent)
        else:
            del self._queues[agent]

    def _wake_at(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        if math.isfinite(when):
            self._timer = (loop, loop.call_at(when, self._pump))


_governors: WeakValueDictionary[tuple[str, str, str], Governor] = WeakValueDictionary()


def governor_for(vendor: str, base_url: str, api_key: str, rate: Rate, *, local: bool) -> Governor:
    """The one governor of an account (vendor, host and key) in this process; it obeys `rate` from now on, too."""
    key = (vendor, urlsplit(base_url).netloc, hashlib.sha256(api_key.encode()).hexdigest())
    governor = _governors.get(key)
    if governor is None:
        governor = _governors[key] = Governor(probe=not local)
    governor.limit(rate)
    return governor

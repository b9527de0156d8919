"""Token counts of model calls and the ledger that adds them up. Knows nothing of tokenizers or vendors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from app.schema.errors import BudgetExceeded, TokenLimitExceeded

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Usage:
    """Disjoint token counts of one or more calls: billed input is `input + cache_read + cache_write`.

    `output_tokens` includes `reasoning_tokens`, which is informational. `estimated` is true as soon as
    any addend was counted by us instead of being reported by the provider.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    @property
    def total_input(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def total(self) -> int:
        return self.total_input + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
        )

    def to_json(self) -> dict[str, int | bool]:
        return {
            "input_tokens": self.input_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "output_tokens": self.output_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "estimated": self.estimated,
        }


Price = Callable[[Usage], float | None]
"""USD for a usage of one model; None when its price is unknown."""

NANO_USD = 1e-9
"""By so much a sum of prices may be rounded up without breaking a limit."""

Scope = Literal["agent", "run", "process", "day"]

_WHO: dict[Scope, str] = {
    "agent": "the agent may",
    "run": "the run may",
    "process": "all runs of this process may",
    "day": "today's runs may",
}
_WAY_OUT: dict[Scope, str] = {
    "agent": "raise [budget.agent] {key} or split the task",
    "run": "raise --{flag} or {other}",
    "process": "raise [budget.process] {key} or start anew",
    "day": "raise [budget.day] {key} or go on tomorrow",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be spent; None = no limit. Tokens are input and output together, money is USD."""

    max_tokens: int | None = None
    max_cost: float | None = None
    max_requests: int | None = None


@dataclass(frozen=True, slots=True)
class Worst:
    """The most that one call may take; `cost_usd` None = its price is unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Amount:
    """Tokens, US dollars and requests together."""

    tokens: int = 0
    cost_usd: float = 0.0
    requests: int = 0


@dataclass(slots=True)
class Ledger:
    """What an agent, a run, a process or a day has spent, and the limits it must stay under.

    Ledgers form a tree: what is booked or held in one counts in every `parent` as well. A call is admitted by `hold`
    with its worst case at every level or at none, so that calls side by side cannot overshoot together; the hold ends
    with what the call really took. `unpriced` says whether a model without a known price may be called while money is
    limited.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    max_requests: int | None = None
    scope: Scope = "run"
    parent: Ledger | None = None
    for_agents: Limits = Limits()
    unpriced: Literal["count_only", "refuse"] = "count_only"
    requests: int = 0
    by_config: dict[str, Usage] = field(default_factory=dict[str, Usage])
    costs: dict[str, float] = field(default_factory=dict[str, float])
    """USD by config name, each call at its own price."""
    unpriced_calls: int = 0
    holds: int = 0
    held: Amount = Amount()
    held_input: dict[str, int] = field(default_factory=dict[str, int])
    trouble: str = ""
    """For people: why this ledger does not count what it should."""
    _waiting: list[asyncio.Future[None]] = field(
        default_factory=list["asyncio.Future[None]"], compare=False, repr=False
    )

    def child(self) -> Ledger:
        """The ledger of an agent that works on behalf of this one."""
        limits = self.for_agents
        return Ledger(
            limits.max_tokens,
            limits.max_cost,
            limits.max_requests,
            scope="agent",
            parent=self,
            for_agents=limits,
            unpriced=self.unpriced,
        )

    def chain(self) -> Iterator[Ledger]:
        """This ledger and all above it."""
        ledger: Ledger | None = self
        while ledger is not None:
            yield ledger
            ledger = ledger.parent

    @property
    def run(self) -> Ledger:
        """The ledger of the whole run that this one belongs to."""
        return next((ledger for ledger in self.chain() if ledger.scope != "agent"), self)

    @property
    def usage(self) -> Usage:
        total = Usage()
        for usage in self.by_config.values():
            total += usage
        return total

    @property
    def cost_usd(self) -> float | None:
        """The price of everything booked, or None when a call without a known price took part."""
        return None if self.unpriced_calls else self.known_cost_usd

    @property
    def known_cost_usd(self) -> float:
        """The price of everything booked that has a known price."""
        return sum(self.costs.values(), 0.0)

    @property
    def spent(self) -> Amount:
        return Amount(self.usage.total, self.known_cost_usd, self.requests)

    @property
    def limited(self) -> bool:
        return not (self.max_tokens is None and self.max_cost is None and self.max_requests is None)

    def left_tokens(self, *, when_settled: bool = False) -> int | None:
        """Tokens that are neither spent nor held (`when_settled`: not spent); None = no limit."""
        if self.max_tokens is None:
            return None
        return self.max_tokens - self.spent.tokens - (0 if when_settled else self.held.tokens)

    def left_cost(self, *, when_settled: bool = False) -> float | None:
        """US dollars that are neither spent nor held (`when_settled`: not spent); None = no limit."""
        if self.max_cost is None:
            return None
        return self.max_cost - self.spent.cost_usd - (0.0 if when_settled else self.held.cost_usd)

    def left_input(self, config: str, max_input_tokens: int, *, when_settled: bool = False) -> int:
        """What the run may still send to one config whose input it limits (OpenManus's `max_input_tokens`)."""
        run = self.run
        spent = run.by_config.get(config, Usage()).total_input
        return max_input_tokens - spent - (0 if when_settled else run.held_input.get(config, 0))

    def check(
        self, config: str, worst: Worst, *, max_input_tokens: int | None = None, when_settled: bool = False
    ) -> None:
        """Raise `TokenLimitExceeded` or `BudgetExceeded` when a call of this worst case would break a limit.

        `when_settled` leaves out what calls under way hold.
        """
        if max_input_tokens is not None:
            self._check_input(config, worst, max_input_tokens, when_settled=when_settled)
        for ledger in self.chain():
            ledger._check_own(worst, when_settled=when_settled)

    def hold(self, config: str, worst: Worst, *, max_input_tokens: int | None = None) -> Hold:
        """Admit a call and keep its worst case for it, at every level, or raise as `check` does and change nothing.

        The request counts as sent from now on.
        """
        if max_input_tokens is not None:
            self._check_input(config, worst, max_input_tokens, when_settled=False)
        self._check_own(worst, when_settled=False)
        above = None if self.parent is None else self.parent.hold(config, worst)
        hold = Hold(self, config, worst, above)
        self._take(hold)
        return hold

    def book(self, config: str, usage: Usage, price: Price | None = None) -> None:
        """Add one call of the model configuration `config` here and above, at `price`."""
        cost = None if price is None else price(usage)
        for ledger in self.chain():
            ledger._add(config, usage, cost)

    async def settled(self) -> None:
        """Wait until a call under way ends."""
        import asyncio

        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def _take(self, hold: Hold) -> None:
        worst = hold.worst
        self.requests += 1
        self.holds += 1
        self.held = Amount(self.held.tokens + worst.tokens, self.held.cost_usd + (worst.cost_usd or 0.0))
        self.held_input[hold.config] = self.held_input.get(hold.config, 0) + worst.input_tokens

    def _give_back(self, hold: Hold, usage: Usage | None, cost_usd: float | None) -> None:
        worst = hold.worst
        self.holds -= 1
        # Sums of floats drift: nothing held is exactly nothing.
        cost = self.held.cost_usd - (worst.cost_usd or 0.0) if self.holds else 0.0
        self.held = Amount(self.held.tokens - worst.tokens, cost)
        self.held_input[hold.config] -= worst.input_tokens
        if usage is not None:
            self._add(hold.config, usage, cost_usd)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def _add(self, config: str, usage: Usage, cost_usd: float | None) -> None:
        self.by_config[config] = self.by_config.get(config, Usage()) + usage
        if cost_usd is None:
            self.unpriced_calls += 1
        else:
            self.costs[config] = self.costs.get(config, 0.0) + cost_usd

    def _check_input(self, config: str, worst: Worst, most: int, *, when_settled: bool) -> None:
        left = self.left_input(config, most, when_settled=when_settled)
        if worst.input_tokens <= left:
            return
        raise TokenLimitExceeded(
            f"the run may spend {most} input tokens on [{config}]; {most - left} are spent"
            f" and the next request needs {worst.input_tokens}",
            hint=f"raise max_input_tokens of [llm.{config}] or split the task",
        )

    def _check_own(self, worst: Worst, *, when_settled: bool) -> None:
        if not self.limited:
            return
        spent, who = self.spent, _WHO[self.scope]
        held = Amount() if when_settled else self.held
        if self.max_requests is not None and spent.requests >= self.max_requests:
            raise BudgetExceeded(
                f"{who} send {self.max_requests} requests; {spent.requests} are sent",
                hint=self._way_out("max_requests", "split the task"),
            )
        if self.max_tokens is not None and spent.tokens + held.tokens + worst.tokens > self.max_tokens:
            raise TokenLimitExceeded(
                f"{who} spend {self.max_tokens} tokens; {spent.tokens} are spent"
                f"{f', {held.tokens} are held by calls under way' if held.tokens else ''}"
                f" and the next request needs up to {worst.tokens}",
                hint=self._way_out("max_tokens", "split the task"),
            )
        if self.max_cost is None or worst.cost_usd is None:
            return
        # A call without a known price must not make the priced ones free.
        if spent.cost_usd + held.cost_usd + worst.cost_usd > self.max_cost + NANO_USD:
            raise BudgetExceeded(
                f"{who} cost ${self.max_cost:.4f}; ${spent.cost_usd:.4f} is spent"
                f"{f', ${held.cost_usd:.4f} is held by calls under way' if held.cost_usd else ''}"
                f" and the next request may cost ${worst.cost_usd:.4f}",
                hint=self._way_out("max_cost", "use a cheaper model"),
            )

    def _way_out(self, key: str, other: str) -> str:
        return _WAY_OUT[self.scope].format(key=key, flag=key.replace("_", "-"), other=other)


class Hold:
    """The worst case of one call, kept for it at every level until `settle` or `release`; the first of them counts.

    `usage` is what the call was settled with.
    """

    __slots__ = ("above", "config", "ledger", "open", "usage", "worst")

    def __init__(self, ledger: Ledger, config: str, worst: Worst, above: Hold | None) -> None:
        self.ledger = ledger
        self.config = config
        self.worst = worst
        self.above = above
        self.open = True
        self.usage = Usage()

    def settle(self, usage: Usage, cost_usd: float | None) -> None:
        """Give the worst case back and book what the call took, at the price of this call."""
        if self.open:
            self.usage = usage
            self._end(usage, cost_usd)

    def release(self) -> None:
        """Give the worst case back; the call took nothing that anybody reported."""
        self._end(None, None)

    def _end(self, usage: Usage | None, cost_usd: float | None) -> None:
        hold: Hold | None = self
        while hold is not None and hold.open:
            hold.open = False
            hold.ledger._give_back(hold, usage, cost_usd)  # pyright: ignore[reportPrivateUsage]
            hold = hold.above

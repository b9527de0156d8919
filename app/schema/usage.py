"""Token counts of model calls and the ledger that adds them up. Knows nothing of tokenizers or vendors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.schema.errors import BudgetExceeded, TokenLimitExceeded


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


@dataclass(slots=True)
class Ledger:
    """What one run has spent, by config name, and the limits it must stay under.

    `max_tokens` bounds input + output of the run, `max_cost` its price in USD. A check happens before a
    call with the call's worst case, so a run never overshoots; a booking happens once per successful call.
    """

    max_tokens: int | None = None
    max_cost: float | None = None
    requests: int = 0
    by_config: dict[str, Usage] = field(default_factory=dict[str, Usage])
    prices: dict[str, Price] = field(default_factory=dict[str, Price])

    @property
    def usage(self) -> Usage:
        total = Usage()
        for usage in self.by_config.values():
            total += usage
        return total

    @property
    def cost_usd(self) -> float | None:
        """The price of everything booked, or None when a model without a known price took part."""
        known = self._known_costs()
        return sum(known, 0.0) if len(known) == len(self.by_config) else None

    @property
    def known_cost_usd(self) -> float:
        """The price of everything booked that has a known price."""
        return sum(self._known_costs(), 0.0)

    def _known_costs(self) -> list[float]:
        costs = [price(self.by_config[config]) for config, price in self.prices.items()]
        return [cost for cost in costs if cost is not None]

    def check(
        self,
        config: str,
        *,
        input_tokens: int,
        output_tokens: int,
        max_input_tokens: int | None = None,
        cost_usd: float | None = None,
    ) -> None:
        """Raise `TokenLimitExceeded` or `BudgetExceeded` when a call of this worst case would break a limit.

        `max_input_tokens` is the input allowance of this config name over the whole run (OpenManus's meaning).
        """
        spent = self.by_config.get(config, Usage()).total_input
        if max_input_tokens is not None and spent + input_tokens > max_input_tokens:
            raise TokenLimitExceeded(
                f"the run may spend {max_input_tokens} input tokens on [{config}]; {spent} are spent"
                f" and the next request needs {input_tokens}",
                hint=f"raise max_input_tokens of [llm.{config}] or split the task",
            )
        total = self.usage.total
        if self.max_tokens is not None and total + input_tokens + output_tokens > self.max_tokens:
            raise TokenLimitExceeded(
                f"the run may spend {self.max_tokens} tokens; {total} are spent and the next request"
                f" needs up to {input_tokens + output_tokens}",
                hint="raise --max-tokens or split the task",
            )
        if self.max_cost is None or cost_usd is None:
            return
        # A call without a known price must not make the priced ones free.
        spent_usd = self.known_cost_usd
        if spent_usd + cost_usd > self.max_cost:
            raise BudgetExceeded(
                f"the run may cost ${self.max_cost:.4f}; ${spent_usd:.4f} is spent and the next request"
                f" may cost ${cost_usd:.4f}",
                hint="raise --max-cost or use a cheaper model",
            )

    def book(self, config: str, usage: Usage, price: Price | None = None) -> None:
        """Add one successful call of the model configuration `config`; `price` prices all its calls."""
        self.by_config[config] = self.by_config.get(config, Usage()) + usage
        if price is not None:
            self.prices[config] = price

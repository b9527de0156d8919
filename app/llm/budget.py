"""What a call may cost before it is made: its worst case, the output cap that fits, its hold on every limit above it.

Ledgers and their limits are `schema/usage.py`'s matter, sending the request the client's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.llm.tokens import TokenCounter
from app.schema.errors import BudgetExceeded
from app.schema.request import ModelRequest
from app.schema.run import RunContext
from app.schema.usage import Hold, Ledger, Price, Usage, Worst

ASSUMED_OUTPUT_TOKENS = 4096
"""The output cap of a budgeted request when neither config nor model names one; the least that a call waits for."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A request with the output cap that fits, and its worst case. `wait_for`: another call must end first."""

    request: ModelRequest
    worst: Worst
    wait_for: Ledger | None = None


@dataclass(slots=True)
class Budget:
    """The arithmetic for one model configuration.

    `output_cap` and `window` are the model's own (None = unknown); `max_input_tokens` bounds the input that a run
    sends to this configuration.
    """

    config: str
    model: str
    counter: TokenCounter
    price: Price
    output_cap: int | None = None
    window: int | None = None
    max_input_tokens: int | None = None

    async def hold(self, request: ModelRequest, ctx: RunContext) -> tuple[ModelRequest, Hold]:
        """Admit the request: (as it may be sent, its hold).

        Waits while calls side by side hold what this one needs. Raises `TokenLimitExceeded` or `BudgetExceeded` when
        not even one token of output fits, whatever those calls give back.
        """
        while True:
            fitted = self.fit(request, ctx)
            if fitted.wait_for is None:
                hold = ctx.ledger.hold(self.config, fitted.worst, max_input_tokens=self.max_input_tokens)
                for ledger in ctx.ledger.chain():
                    if ledger.trouble:
                        ctx.notice("BUDGET_FILE", ledger.trouble, once=True)
                return fitted.request, hold
            await fitted.wait_for.settled()

    def fit(self, request: ModelRequest, ctx: RunContext) -> Fitted:
        """The request with its output capped to what every limit leaves. Raises when nothing can fit any more.

        A call takes at most half of what is left, or what is left of 4096 tokens, so that agents side by side find
        something too. Where the model's own cap is smaller, the request stays as it is.
        """
        ledger = ctx.ledger
        if self.max_input_tokens is None and not any(each.limited for each in ledger.chain()):
            return Fitted(request, Worst())
        needed = self.counter.request(request.messages, system=request.system, tools=request.tools)
        dollars = self._dollars(needed, ctx)
        own_cap = request.config.max_tokens or self.output_cap
        wanted = own_cap or ASSUMED_OUTPUT_TOKENS
        now, blocking = self._output_left(ledger, needed, dollars)
        if blocking is not None and now < min(wanted, ASSUMED_OUTPUT_TOKENS):
            least = self._worst(needed, 1, dollars)
            ledger.check(self.config, least, max_input_tokens=self.max_input_tokens, when_settled=True)
            return Fitted(request, least, wait_for=blocking)
        output = max(1, min(wanted, max(now // 2, min(now, ASSUMED_OUTPUT_TOKENS))))
        worst = self._worst(needed, output, dollars)
        ledger.check(self.config, worst, max_input_tokens=self.max_input_tokens)
        if now >= _UNLIMITED or output == own_cap:
            return Fitted(request, worst)
        if self.window:
            # Servers refuse a cap beyond the window; our count of the input is an estimate.
            output = max(1, min(output, self.window - needed - needed // 16))
        return Fitted(replace(request, config=replace(request.config, max_tokens=output)), worst)

    def _output_left(
        self, ledger: Ledger, needed: int, dollars: tuple[float, float] | None
    ) -> tuple[int, Ledger | None]:
        """The output tokens that every limit leaves now, and a ledger where calls under way hold some of them."""
        left, blocking = _UNLIMITED, None
        for each in ledger.chain():
            if (tokens := each.left_tokens()) is not None:
                left, blocking = _smaller(tokens - needed, each, left, blocking)
            if dollars and (cost := each.left_cost()) is not None and dollars[1] > 0:
                left, blocking = _smaller(int((cost - dollars[0]) / dollars[1]), each, left, blocking)
        limit = self.max_input_tokens
        if limit is not None and ledger.left_input(self.config, limit) < needed and ledger.run.holds:
            return 0, ledger.run
        return left, blocking if blocking is not None and blocking.holds else None

    def _dollars(self, needed: int, ctx: RunContext) -> tuple[float, float] | None:
        """(price of the input at its dearest, price of one output token); None when money is not limited or no price
        is known, which the policy of the ledger answers.
        """
        if all(each.max_cost is None for each in ctx.ledger.chain()):
            return None
        uncached, written = self.price(Usage(input_tokens=needed)), self.price(Usage(cache_write_tokens=needed))
        # Asked together with the input, because some prices rise with its length.
        answered = self.price(Usage(input_tokens=needed, output_tokens=1_000_000))
        if uncached is not None and answered is not None:
            return max(uncached, written or 0.0), (answered - uncached) / 1_000_000
        if ctx.ledger.unpriced == "refuse":
            raise BudgetExceeded(
                f"{self.model} has no known price, and money is limited",
                hint='use a model with a price, or set [budget] unpriced = "count_only"',
            )
        ctx.notice("UNPRICED", f"{self.model} has no known price; a limit of money cannot bind it", once=True)
        return None

    def _worst(self, needed: int, output: int, dollars: tuple[float, float] | None) -> Worst:
        return Worst(needed, output, dollars[0] + output * dollars[1] if dollars else None)


_UNLIMITED = 1 << 62


def _smaller(tokens: int, ledger: Ledger, left: int, blocking: Ledger | None) -> tuple[int, Ledger | None]:
    return (tokens, ledger) if tokens < left else (left, blocking)

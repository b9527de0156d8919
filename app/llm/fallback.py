"""Which other model answers when one fails: the ordered `fallback` of a configuration. Decides; asks nothing by itself.

Only the list of the model that was asked counts, not those of the models in it, so there are no circles. Each model is
asked with its own abilities, budget and retries; see `docs/decisions/0006-fallback.md`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from app.schema.errors import RETRIED_CODES, ConfigError, LLMError
from app.schema.event import Retrying
from app.schema.run import RunContext

if TYPE_CHECKING:
    from app.llm.client import LLM

T = TypeVar("T")
Find = Callable[[str], "LLM"]

STEPS_IN = RETRIED_CODES | {"QUOTA", "MALFORMED_RESPONSE"}
"""Failures that another model may not have. A wrong key, address or model name is for the user to mend."""
REST_S = 30.0
"""For so long a model that failed is passed over, so that a run does not wait for it at every step."""


class Fallback:
    """The models that stand in for one. `find` gives the `LLM` of a config name."""

    def __init__(
        self, names: tuple[str, ...] = (), find: Find | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._names = names
        self._find = find
        self._clock = clock
        self._rests_until = 0.0

    async def answer(self, first: LLM, ask: Callable[[LLM], Awaitable[T]], ctx: RunContext, *, sees: bool = False) -> T:
        """What the first model in the list answers that can. Raises the failure of `first` when none does.

        `sees`: only models that take images stand in. Spent budgets and other errors that are no model's fault come
        out at once.
        """
        if not self._names or self._find is None:
            return await ask(first)
        failed: LLMError | None = None
        if self._clock() >= self._rests_until:
            try:
                return await ask(first)
            except LLMError as error:
                if error.code not in STEPS_IN and error.code != "CONTEXT_WINDOW_EXCEEDED":
                    raise
                failed = error
                if error.code in STEPS_IN:
                    self._rests_until = self._clock() + REST_S
        last, why = first, failed
        for other in self._others(ctx):
            if not _fits(other, first, failed, sees=sees):
                continue
            _announce(last, why, other, ctx)
            try:
                return await ask(other)
            except LLMError as error:
                last, why = other, error
        if failed is None:
            # Everybody else failed while the first was resting.
            return await ask(first)
        raise failed

    def _others(self, ctx: RunContext) -> Iterator[LLM]:
        assert self._find is not None
        for name in self._names:
            try:
                yield self._find(name)
            except ConfigError as error:
                ctx.notice("FALLBACK", f"[llm.{name}] cannot stand in: {error.message}", once=True)


def _fits(other: LLM, first: LLM, failed: LLMError | None, *, sees: bool) -> bool:
    if other is first or (sees and not other.facts.sends_images):
        return False
    if failed is None or failed.code != "CONTEXT_WINDOW_EXCEEDED":
        return True
    return (other.facts.context_window or 0) > (first.facts.context_window or 0)


def _announce(last: LLM, why: LLMError | None, other: LLM, ctx: RunContext) -> None:
    now = f"{other.settings.model} ([llm.{other.name}]) answers instead"
    if why is not None:
        # Whatever was shown of the failed attempt is withdrawn.
        ctx.emit(Retrying(1, 0.0, why.code, why.message))
        ctx.notice("FALLBACK", f"{last.settings.model} ([llm.{last.name}]) failed: {why.message}; {now}")
    if not other.local:
        ctx.notice("CLOUD", f"the text of this run goes to {other.vendor} ({other.settings.model})", once=True)

"""Notices that an agent goes in circles: the same step, or the same short cycle of steps, with the same results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from app.schema.message import ToolCallBlock
from app.tools.arguments import call_signature

Verdict = Literal["fine", "hint", "stuck"]

HINT_AT = 3
"""From the third repetition on the model is told, whatever the length of the cycle."""
REFUSE_AT = 5
"""From the fifth time on a step that only repeats the one before is answered without being run."""
STUCK_AT = {1: 7, 2: 5, 3: 5}
"""The repetition that ends the run, by the number of steps in the cycle."""

COMPARED_CHARS = 4_000
"""How much of a result's head and of its tail is compared; between them may stand where its full text was saved."""


class StuckGuard:
    """Fed once a step with what was called and what came back; a changed result is progress and resets the count."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, int]] = []

    def record(self, calls: Sequence[ToolCallBlock], results: Iterable[str]) -> Verdict:
        """Book a finished step and judge the history."""
        parts = tuple((text[:COMPARED_CHARS], text[-COMPARED_CHARS:]) for text in results)
        return self._book((signature(calls), hash(parts)))

    def record_refusal(self) -> Verdict:
        """Book that the last step was asked for again and refused."""
        return self._book(self._steps[-1])

    def refuses(self, calls: Sequence[ToolCallBlock]) -> bool:
        """True when running these calls again would be the fifth or a later identical time."""
        return self.repeats >= REFUSE_AT - 1 and self.last == signature(calls)

    @property
    def repeats(self) -> int:
        """How often the last step stands in a row, with the same results."""
        return _repeats(self._steps, 1)

    @property
    def last(self) -> str:
        """The calls of the last step, in words."""
        return self._steps[-1][0] if self._steps else ""

    def _book(self, step: tuple[str, int]) -> Verdict:
        self._steps.append(step)
        counts = {period: _repeats(self._steps, period) for period in STUCK_AT}
        if any(count >= STUCK_AT[period] for period, count in counts.items()):
            return "stuck"
        return "hint" if max(counts.values()) >= HINT_AT else "fine"


def signature(calls: Sequence[ToolCallBlock]) -> str:
    """Name and normalised arguments of each call."""
    return "|".join(map(call_signature, calls))


def _repeats(steps: Sequence[tuple[str, int]], period: int) -> int:
    """How often the last `period` steps stand in a row at the end; a constant row is no cycle of two or three."""
    tail = list(steps[-period:])
    if len(tail) < period or (period > 1 and len(set(tail)) == 1):
        return 0
    count = 0
    end = len(steps)
    while end >= period and list(steps[end - period : end]) == tail:
        count += 1
        end -= period
    return count

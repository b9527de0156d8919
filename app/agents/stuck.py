"""Notices that an agent goes in circles: the same step, or the same short cycle of steps, with the same results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal

from app.schema.message import ToolCallBlock

Verdict = Literal["fine", "hint", "stuck"]

HINT_AT = 3
REFUSE_AT = 4
STUCK_AT = {1: 7, 2: 5, 3: 5}
"""Repetitions, by cycle length: a hint at the third, refusal of the call from the fifth on, then the end of the run."""


class StuckGuard:
    """Fed once a step with what was called and what came back; a changed result is progress and resets the count."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, int]] = []

    def record(self, calls: Sequence[ToolCallBlock], results: Iterable[str], text: str) -> Verdict:
        """Book a finished step (its text counts only when it had no calls) and judge the history."""
        self._steps.append((signature(calls, text), hash(tuple(results))))
        verdict: Verdict = "fine"
        for period, limit in STUCK_AT.items():
            repeats = _repeats(self._steps, period)
            if repeats >= limit:
                return "stuck"
            if repeats >= HINT_AT:
                verdict = "hint"
        return verdict

    def refuses(self, calls: Sequence[ToolCallBlock]) -> bool:
        """True when running these calls again would be at least the fifth identical time."""
        if _repeats(self._steps, 1) < REFUSE_AT:
            return False
        return self._steps[-1][0] == signature(calls, "")

    @property
    def last(self) -> str:
        return self._steps[-1][0] if self._steps else ""


def signature(calls: Sequence[ToolCallBlock], text: str) -> str:
    """Name and normalised arguments of each call, or the text of a step without calls."""
    if not calls:
        return f"text:{' '.join(text.split())}"
    return "|".join(f"{call.name}({_normal(call.arguments)})" for call in calls)


def _normal(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()


def _repeats(steps: Sequence[tuple[str, int]], period: int) -> int:
    """How often the last `period` steps stand in a row at the end; a constant row is no cycle of two or three."""
    if len(steps) < period:
        return 0
    tail = list(steps[-period:])
    if period > 1 and len(set(tail)) == 1:
        return 0
    count = 0
    end = len(steps)
    while end >= period and list(steps[end - period : end]) == tail:
        count += 1
        end -= period
    return count

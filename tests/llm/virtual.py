"""An event loop whose clock jumps: a minute of waiting takes no time, and every run of a scenario is the same."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_S = 1_020.0
"""A whole minute."""


class _Jumping(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self.loop.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For pure asyncio: nothing here may wait for a file descriptor."""

    def __init__(self) -> None:
        self.now = START_S
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run_virtual(scenario: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """(result of the scenario, the seconds it took on its own clock)"""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(scenario, 100_000)), loop.now - START_S
    finally:
        loop.close()

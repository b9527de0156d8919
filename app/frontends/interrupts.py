"""Stop signals: the first asks the run to end, the second leaves. What the run does about it is the run's matter."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from app.schema.run import CancelToken

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
LEAVE_AFTER_S = 0.5
"""After the second signal, the longest time for ending children and writing the last line."""


class Interrupts:
    """Installed around the whole program by `with`; `during(token)` names the run that a signal stops.

    Between runs a signal cancels the program's task. A plain handler, not the loop's, so that a third signal gets
    through even when the loop is busy.
    """

    def __init__(self) -> None:
        self.cause = "SIGINT"
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._token: CancelToken | None = None
        self._count = 0
        self._came = False
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        return 130 if self.cause == "SIGINT" else 143

    @contextmanager
    def installed(self) -> Generator[None]:
        try:
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        except ValueError:  # not the main thread: whoever started us handles signals
            self._before = {}
        try:
            yield
        finally:
            for number, handler in self._before.items():
                # A further signal, while the interpreter waits for its threads, must not end in a traceback.
                signal.signal(number, self._leave if self._came else handler)

    @contextmanager
    def during(self, token: CancelToken) -> Generator[None]:
        self._token, self._count = token, 0
        try:
            yield
        finally:
            self._token, self._count = None, 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        # A closed terminal ends the program like a request to terminate.
        self.cause = "SIGINT" if name == "SIGINT" else "SIGTERM"
        self._count += 1
        self._came = True
        if self._count > 2:
            self._leave()
        self._loop.call_soon_threadsafe(self._ask_to_stop)

    def _leave(self, *_: object) -> NoReturn:
        os._exit(self.exit_code)

    def _ask_to_stop(self) -> None:
        if self._token is not None and not self._token.cancelled:
            self._token.cancel(self.cause)
        elif self._task is not None:
            self._task.cancel()
            if self._count > 1:
                self._loop.call_later(LEAVE_AFTER_S, self._leave)

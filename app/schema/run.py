"""A run from the outside: the context handed down through it and the result that comes up."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from app.schema.errors import DragomanError
from app.schema.event import Event, EventRecord, Notice
from app.schema.message import JSON
from app.schema.usage import Ledger, Usage

StopReason = Literal["answered", "finished", "failed", "step_limit", "budget", "context", "stuck", "time", "cancelled"]

EXIT_CODES: dict[StopReason, int] = {
    "answered": 0,
    "finished": 0,
    "failed": 1,
    "step_limit": 3,
    "budget": 3,
    "context": 3,
    "stuck": 3,
    "time": 3,
    "cancelled": 130,
}

EventSink = Callable[[EventRecord], None]


def discard(record: EventRecord) -> None:
    """The sink of a run that nobody watches."""


class CancelToken:
    """A stop request that travels down a run. The first cause wins; callbacks run once, at the request."""

    def __init__(self) -> None:
        self.cause: str | None = None
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._ids = itertools.count()

    @property
    def cancelled(self) -> bool:
        return self.cause is not None

    def cancel(self, cause: str = "user") -> None:
        if self.cause is not None:
            return
        self.cause = cause
        for callback in list(self._callbacks.values()):
            callback()

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` at the stop request (at once if it was made); returns a function that forgets it."""
        if self.cancelled:
            callback()
            return lambda: None
        key = next(self._ids)
        self._callbacks[key] = callback

        def forget() -> None:
            self._callbacks.pop(key, None)

        return forget


@dataclass(slots=True, kw_only=True)
class RunContext:
    """What every part of a run is handed: where events go, the stop request, the ledger, the time limit.

    `deadline` is a `time.monotonic()` value. `child()` gives a nested context whose events name this one as parent;
    a context with a parent belongs to a sub-agent, which does not open or close the run, and its ledger counts in
    this one's.
    """

    sink: EventSink = discard
    run: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex[:12]}")
    span: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    parent: str | None = None
    cancel: CancelToken = field(default_factory=CancelToken)
    ledger: Ledger = field(default_factory=Ledger)
    deadline: float | None = None
    session: str | None = None
    seq: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _noticed: set[str] = field(default_factory=set[str])

    def emit(self, event: Event) -> None:
        self.sink(EventRecord(next(self.seq), time.time(), self.run, self.span, self.parent, event))

    def notice(self, code: str, message: str, *, once: bool = False) -> None:
        """Emit a notice; with `once`, the same text is said only once in the run."""
        if once:
            if message in self._noticed:
                return
            self._noticed.add(message)
        self.emit(Notice(code, message))

    def child(self) -> RunContext:
        return RunContext(
            sink=self.sink,
            run=self.run,
            parent=self.span,
            cancel=self.cancel,
            ledger=self.ledger.child(),
            deadline=self.deadline,
            session=self.session,
            seq=self.seq,
            _noticed=self._noticed,
        )


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run failed or was stopped, for people and programs."""

    code: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: DragomanError) -> RunError:
        return cls(error.code, error.message, error.hint)

    def to_json(self) -> dict[str, JSON]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run as a value; nothing resets it.

    `cost_usd` is None when a model without a known price took part. `usage` counts this run alone.
    """

    stop_reason: StopReason
    answer: str
    usage: Usage = field(default_factory=Usage)
    error: RunError | None = None
    steps: int = 0
    requests: int = 0
    cost_usd: float | None = None
    cause: str | None = None
    """For `cancelled`: what asked for the stop (`SIGINT`, `SIGTERM`, `user`)."""

    @property
    def ok(self) -> bool:
        return self.stop_reason in ("answered", "finished")

    @property
    def exit_code(self) -> int:
        terminated = self.stop_reason == "cancelled" and self.cause == "SIGTERM"
        return 143 if terminated else EXIT_CODES[self.stop_reason]

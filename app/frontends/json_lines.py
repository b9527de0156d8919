"""The JSON-lines view: every event as one object a line, with exactly one `run_finished`, which is the last."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from app.config.secrets import Redactor
from app.frontends.redact import StreamFilter
from app.schema.event import Event, EventRecord, ReasoningStreamed, RunFinished, TextStreamed
from app.schema.run import RunContext, RunError, StopReason
from app.schema.usage import Usage


class JsonLines:
    """Writes events. `seq` counts the lines, because a piece of text may wait until it is known to hold no secret."""

    def __init__(self, write: Callable[[str], object], redactor: Redactor) -> None:
        self._write = write
        self._redact = redactor
        self._seq = count(1)
        self._held: dict[tuple[str, type[Event]], tuple[StreamFilter, EventRecord]] = {}
        self._root: EventRecord | None = None
        self.finished = False

    def __call__(self, record: EventRecord) -> None:
        self._root = self._root or record
        match record.event:
            case TextStreamed() | ReasoningStreamed():
                self._stream(record, record.event)
            case event:
                self._release(record.span)
                self.finished = self.finished or isinstance(event, RunFinished)
                self._line(record)

    def fail(self, error: RunError, *, stop_reason: StopReason = "failed") -> None:
        """Close a run that could not say its own end, or one that never began."""
        if self.finished:
            return
        for span in {span for span, _ in self._held}:
            self._release(span)
        ctx = RunContext(sink=self)
        if self._root is not None:
            ctx.run, ctx.span = self._root.run, self._root.span
        ctx.emit(RunFinished(stop_reason, "", error.to_json(), Usage(), None, 0, 0, None))

    def _stream(self, record: EventRecord, event: TextStreamed | ReasoningStreamed) -> None:
        key = (record.span, type(event))
        filtered, _ = self._held.get(key) or (StreamFilter(self._redact, for_terminal=False), record)
        self._held[key] = (filtered, record)
        if text := filtered.feed(event.text):
            self._line(replace(record, event=replace(event, text=text)))

    def _release(self, span: str) -> None:
        for key in [key for key in self._held if key[0] == span]:
            filtered, record = self._held.pop(key)
            event = record.event
            text = filtered.flush()
            if text and isinstance(event, TextStreamed | ReasoningStreamed):
                self._line(replace(record, event=replace(event, text=text)))

    def _line(self, record: EventRecord) -> None:
        line = json.dumps(replace(record, seq=next(self._seq)).to_json(), ensure_ascii=False, default=str)
        self._write(self._redact(line) + "\n")

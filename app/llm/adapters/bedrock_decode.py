"""Amazon Bedrock Converse, incoming: binary frames, their events, and whole replies, to chunks. No input or output.

The frames are read by botocore, which checks their sums; what they hold is read here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from app.llm.adapters.reply import Draft, ReplyWriter, finish_of
from app.llm.adapters.wire import Table, as_items, as_number, as_table, as_text, loads
from app.llm.failures import HINTS, classify
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.stream import Chunk, UsageReport
from app.schema.usage import Usage

MAX_EVENT_BYTES = 16 * 1024 * 1024
EXCEPTIONS = {
    "throttlingException": 429,
    "validationException": 400,
    "modelTimeoutException": 408,
    "internalServerException": 500,
    "modelStreamErrorException": 502,
    "serviceUnavailableException": 503,
}
"""Exceptions inside a stream, as the HTTP status that each would have had; any other is a fault of the service."""


class FrameReader:
    """Frames of `application/vnd.amazon.eventstream`: (event or exception type, payload)."""

    def __init__(self, who: str) -> None:
        from botocore.eventstream import EventStreamBuffer

        self._who = who
        self._buffer: Any = EventStreamBuffer()
        self._pending = 0

    def feed(self, piece: bytes) -> Iterator[tuple[str, JSON]]:
        from botocore.eventstream import ParserError

        self._buffer.add_data(piece)
        self._pending += len(piece)
        try:
            for message in self._buffer:
                self._pending = 0
                yield self._event(message.headers, message.payload)
        except ParserError as error:
            raise LLMError(f"{self._who} sent a broken event: {error}", "MALFORMED_RESPONSE") from error
        if self._pending > MAX_EVENT_BYTES:
            raise LLMError(f"{self._who} sent an event of more than 16 MiB", "MALFORMED_RESPONSE")

    def flush(self) -> Iterator[tuple[str, JSON]]:
        """A frame that is not whole counts for nothing."""
        return iter(())

    def _event(self, headers: dict[str, Any], payload: bytes) -> tuple[str, JSON]:
        kind = headers.get(":message-type")
        if kind == "error":
            said = {"message": str(headers.get(":error-message", ""))}
            return str(headers.get(":error-code", "internalServerException")), said
        name = headers.get(":exception-type" if kind == "exception" else ":event-type", "")
        return str(name), loads(payload, self._who) if payload.strip() else {}


class ConverseDecoder:
    def __init__(self, who: str, origin: str) -> None:
        self._who = who
        self._origin = origin
        self._reply = ReplyWriter()
        self._drafts: dict[int, Draft] = {}
        self._redacted: dict[int, str] = {}
        self._usage: Usage | None = None
        self._reason = ""
        self.done = False

    def feed(self, payload: JSON, event: str = "") -> list[Chunk]:
        """The chunks of one event. Raises `LLMError` for an exception inside the stream and for what is no object."""
        data = as_table(payload)
        if data is None:
            raise LLMError(f"{self._who} sent an event that is no JSON object", "MALFORMED_RESPONSE")
        index = as_number(data.get("contentBlockIndex"))
        match event:
            case "contentBlockStart":
                if (use := as_table((as_table(data.get("start")) or {}).get("toolUse"))) is not None:
                    self._open_call(index, use)
            case "contentBlockDelta":
                self._delta(index, as_table(data.get("delta")) or {})
            case "contentBlockStop":
                if (draft := self._drafts.pop(index, None)) is not None:
                    self._close(draft)
            case "messageStop":
                self._reason = as_text(data.get("stopReason")).lower()
            case "metadata":
                self._count(data)
                self.done = True
            case _:
                self._check_no_exception(event, data)
        return self._reply.take()

    def _check_no_exception(self, event: str, data: Table) -> None:
        """Unknown events are passed over, unknown exceptions are not."""
        status = EXCEPTIONS.get(event[:1].lower() + event[1:])
        if status is None and not event.lower().endswith(("exception", "error")):
            return
        words = as_text(data.get("originalMessage")) or as_text(data.get("message"))
        body = json.dumps({"message": words or event, "code": event}).encode()
        error = classify(status or 500, body, who=self._who)
        raise LLMError(f"{self._who} broke off: {words or event}", error.code, hint=error.hint)

    def _open_call(self, index: int, use: Table) -> Draft:
        call_id, name = as_text(use.get("toolUseId")), as_text(use.get("name"))
        draft = self._drafts[index] = self._reply.open("tool-call", call_id=call_id, name=name)
        self._reply.add(draft, "")
        return draft

    def _delta(self, index: int, delta: Table) -> None:
        if text := as_text(delta.get("text")):
            self._reply.add(self._draft(index, "text"), text)
        if (use := as_table(delta.get("toolUse"))) is not None:
            draft = self._drafts.get(index) or self._open_call(index, {})
            self._reply.add(draft, as_text(use.get("input")))
        if (thought := as_table(delta.get("reasoningContent"))) is not None:
            self._think(index, thought)

    def _think(self, index: int, thought: Table) -> None:
        draft = self._draft(index, "reasoning")
        self._reply.add(draft, as_text(thought.get("text")))
        if signature := as_text(thought.get("signature")):
            draft.signature = (draft.signature or "") + signature
        if redacted := as_text(thought.get("redactedContent")):
            self._redacted[draft.index] = self._redacted.get(draft.index, "") + redacted

    def _draft(self, index: int, kind: Any) -> Draft:
        draft = self._drafts.get(index)
        if draft is None or draft.kind != kind:
            if draft is not None:
                self._reply.close(draft)
            draft = self._drafts[index] = self._reply.open(kind)
        return draft

    def _close(self, draft: Draft) -> None:
        if draft.kind == "tool-call" and not draft.text:
            # A call without arguments comes without any piece.
            self._reply.add(draft, "{}")
        self._reply.close(draft)

    def _count(self, holder: Table) -> None:
        if (usage := as_table(holder.get("usage"))) is not None:
            self._usage = read_usage(usage)

    def end(self, *, done: bool) -> list[Chunk]:
        """Close the reply: block ends, usage, finish. Raises `STREAM_CLOSED` when no stop reason came."""
        if not self._reason:
            raise LLMError(f"{self._who} closed the stream before the reply was complete", "STREAM_CLOSED")
        for draft in self._drafts.values():
            self._close(draft)
        finish = finish_of(self._reason, self._reply, who=self._who, model=None, replay_state=self._replay_state())
        usage = [] if self._usage is None else [UsageReport(self._usage)]
        return [*self._reply.take(), *usage, finish]

    def _replay_state(self) -> JSON:
        """Signed and redacted thinking, as it goes back, in the envelope that is kept in step with the blocks."""
        kept: list[Any] = [self._signed(draft) for draft in self._reply.drafts]
        return {"converse": self._origin, "blocks": kept} if any(kept) else None

    def _signed(self, draft: Draft) -> Table | None:
        if (redacted := self._redacted.get(draft.index)) is not None:
            return {"redactedContent": redacted}
        if draft.signature is None:
            return None
        return {"reasoningText": {"text": draft.text, "signature": draft.signature}}

    def complete_body(self, payload: JSON) -> list[Chunk]:
        """The chunks of a whole, unstreamed reply."""
        table = as_table(payload) or {}
        message = as_table((as_table(table.get("output")) or {}).get("message"))
        if message is None:
            raise LLMError(f"{self._who} answered with JSON that is no reply", "ENDPOINT", hint=HINTS["ENDPOINT"])
        for index, block in enumerate(map(as_table, as_items(message.get("content")))):
            self._block(index, block or {})
        self._reason = as_text(table.get("stopReason")).lower()
        self._count(table)
        return [*self._reply.take(), *self.end(done=True)]

    def _block(self, index: int, block: Table) -> None:
        if (use := as_table(block.get("toolUse"))) is not None:
            self._reply.add(self._open_call(index, use), json.dumps(use.get("input") or {}, ensure_ascii=False))
            return
        thought = as_table(block.get("reasoningContent"))
        if thought is not None:
            self._think(index, (as_table(thought.get("reasoningText")) or {}) | thought)
        elif text := as_text(block.get("text")):
            self._reply.add(self._draft(index, "text"), text)


def read_usage(usage: Table) -> Usage:
    """Counts of `usage`, disjoint on this wire: `inputTokens` leaves out what came from or went to the cache."""
    return Usage(
        input_tokens=as_number(usage.get("inputTokens")),
        output_tokens=as_number(usage.get("outputTokens")),
        cache_read_tokens=as_number(usage.get("cacheReadInputTokens")),
        cache_write_tokens=as_number(usage.get("cacheWriteInputTokens")),
    )

"""Anthropic Messages, incoming: stream events to chunks. No input or output."""

from __future__ import annotations

import json
from collections.abc import Iterator

from app.llm.adapters.reply import Draft, ReplyWriter, finish_of
from app.llm.adapters.wire import Table, as_items, as_number, as_table, as_text, dumps
from app.llm.failures import HINTS, in_band
from app.schema.errors import LLMError, LLMFailure
from app.schema.message import JSON, OpaqueBlock
from app.schema.stream import Chunk, Finish, UsageReport
from app.schema.usage import Usage

PAUSED = "PAUSED"
"""The code of a finish that is none: the server wants to be asked to go on (`pause_turn`)."""


class MessagesDecoder:
    def __init__(self, who: str) -> None:
        self.done = False
        self._who = who
        self._reply = ReplyWriter()
        self._open: dict[str, Draft] = {}
        self._inputs: dict[str, JSON] = {}
        self._counts: dict[str, int] = {}
        self._reason = ""
        self._refusal = ""
        self._model: str | None = None

    def feed(self, payload: JSON, event: str = "") -> list[Chunk]:
        """The chunks of one event. Raises `LLMError` for an error inside the stream and for what is no object."""
        data = as_table(payload)
        if data is None:
            raise LLMError(f"{self._who} sent an event that is no JSON object", "MALFORMED_RESPONSE")
        if (error := in_band(data, who=self._who)) is not None:
            raise error
        match as_text(data.get("type")) or event:
            case "message_start":
                self._start(as_table(data.get("message")) or {})
            case "content_block_start":
                self._block_start(_slot(data), as_table(data.get("content_block")) or {})
            case "content_block_delta":
                self._block_delta(_slot(data), as_table(data.get("delta")) or {})
            case "content_block_stop":
                self._block_stop(_slot(data))
            case "message_delta":
                self._message_delta(as_table(data.get("delta")) or {})
                self._count(data)
            case "message_stop":
                self.done = True
            case _:
                pass  # pings, and what later versions may add
        return self._reply.take()

    def _start(self, message: Table) -> None:
        self._model = as_text(message.get("model")) or self._model
        self._count(message)

    def _count(self, holder: Table) -> None:
        """Counts are cumulative; a later event may leave out what has not changed."""
        usage = as_table(holder.get("usage")) or {}
        details = as_table(usage.get("output_tokens_details")) or {}
        counts = (*usage.items(), *details.items())
        self._counts |= {name: as_number(count) for name, count in counts if _is_count(count)}

    def _block_start(self, slot: str, block: Table) -> None:
        kind = as_text(block.get("type"))
        match kind:
            case "text":
                self._add_text(slot, as_text(block.get("text")))
            case "thinking":
                draft = self._open[slot] = self._reply.open("reasoning")
                self._reply.add(draft, as_text(block.get("thinking")))
                draft.signature = as_text(block.get("signature")) or None
            case "tool_use":
                name = as_text(block.get("name"))
                draft = self._open[slot] = self._reply.open("tool-call", call_id=as_text(block.get("id")), name=name)
                self._reply.add(draft, "")
                self._inputs[slot] = block.get("input")
            case "":
                pass
            case _:
                # Redacted thinking comes whole and goes back as it is; other kinds are kept for whoever knows them.
                self._reply.put(kind, OpaqueBlock(kind, json.dumps({"kind": kind, **block}, ensure_ascii=False)))

    def _add_text(self, slot: str, piece: str) -> None:
        # An empty text block is no block: the API itself refuses it in a history.
        if not piece:
            return
        if slot not in self._open:
            self._open[slot] = self._reply.open("text")
        self._reply.add(self._open[slot], piece)

    def _block_delta(self, slot: str, delta: Table) -> None:
        draft = self._open.get(slot)
        match as_text(delta.get("type")):
            case "text_delta":
                self._add_text(slot, as_text(delta.get("text")))
            case "input_json_delta" if draft is not None:
                self._reply.add(draft, as_text(delta.get("partial_json")))
            case "thinking_delta":
                if draft is None:
                    draft = self._open[slot] = self._reply.open("reasoning")
                self._reply.add(draft, as_text(delta.get("thinking")))
            case "signature_delta" if draft is not None:
                draft.signature = (draft.signature or "") + as_text(delta.get("signature"))
            case _:
                pass  # citations, and what later versions may add

    def _block_stop(self, slot: str) -> None:
        draft = self._open.pop(slot, None)
        if draft is None:
            return
        if draft.kind == "tool-call" and not draft.text:
            # Some servers send the whole input with the start of the block; an empty one means no arguments.
            self._reply.add(draft, dumps(self._inputs.get(slot) or {}).decode())
        self._reply.close(draft)

    def _message_delta(self, delta: Table) -> None:
        self._reason = as_text(delta.get("stop_reason")).lower() or self._reason
        details = as_table(delta.get("stop_details")) or {}
        self._refusal = as_text(details.get("explanation")) or self._refusal

    def end(self, *, done: bool) -> list[Chunk]:
        """Close the reply. Raises `STREAM_CLOSED` when neither a stop reason nor the last event has come."""
        if not self._reason and not done:
            raise LLMError(f"{self._who} closed the stream before the reply was complete", "STREAM_CLOSED")
        for slot in tuple(self._open):
            self._block_stop(slot)
        finish = self._finish()
        self._reply.close_all()
        usage = [UsageReport(self._usage())] if self._counts else []
        return [*self._reply.take(), *usage, finish]

    def _finish(self) -> Finish:
        if self._reason == "pause_turn":
            return Finish("error", LLMFailure(f"{self._who} paused its turn", PAUSED), model=self._model)
        return finish_of(self._reason, self._reply, who=self._who, model=self._model, refusal=self._refusal)

    def _usage(self) -> Usage:
        """Disjoint as they come: cached tokens are not part of `input_tokens`."""
        counts = self._counts
        return Usage(
            input_tokens=counts.get("input_tokens", 0),
            output_tokens=counts.get("output_tokens", 0),
            cache_read_tokens=counts.get("cache_read_input_tokens", 0),
            cache_write_tokens=counts.get("cache_creation_input_tokens", 0),
            reasoning_tokens=counts.get("thinking_tokens", 0),
        )

    def complete_body(self, payload: JSON) -> list[Chunk]:
        """A whole message: the same as its events."""
        data = as_table(payload) or {}
        if (error := in_band(data, who=self._who)) is not None:
            raise error
        if not isinstance(data.get("content"), list):
            raise LLMError(f"{self._who} answered with JSON that is no message", "ENDPOINT", hint=HINTS["ENDPOINT"])
        chunks = [chunk for event in _events(data) for chunk in self.feed(event)]
        return [*chunks, *self.end(done=True)]


def _events(message: Table) -> Iterator[Table]:
    yield {"type": "message_start", "message": message}
    for index, block in enumerate(as_items(message.get("content"))):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": message, "usage": message.get("usage")}


def _slot(data: Table) -> str:
    return str(data.get("index"))


def _is_count(value: JSON) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)

"""OpenAI Responses, incoming: stream events, or a whole response, to chunks. No input or output.

Every item comes twice: in pieces, and whole when it is done (and once more in the final response). The whole one
wins, so that a piece which was lost on the way is no loss. Events of unknown types are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from app.llm.adapters.reply import Draft, ReplyWriter, finish_of
from app.llm.adapters.wire import Table, as_items, as_number, as_table, as_text
from app.llm.failures import HINTS, in_band
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.stream import Chunk, UsageReport
from app.schema.usage import Usage

FINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
REPLAYED = ("type", "id", "summary", "content", "encrypted_content")
"""What of a thinking item goes back to the server; the API refuses members that are null, and `status`."""
POLICIES = frozenset({"bio_policy", "misalignment_policy_violation", "image_content_policy_violation", "cyber_policy"})
Place = tuple[JSON, ...]
"""Which block an event belongs to: item and, inside a message, part. Some gateways give every event another item id."""


class ResponsesDecoder:
    def __init__(self, who: str, origin: str) -> None:
        self._who = who
        self._origin = origin
        self._reply = ReplyWriter()
        self._drafts: dict[Place, Draft] = {}
        self._beside: dict[int, Table] = {}
        self._places: dict[str, Place] = {}
        self._summary_part: dict[Place, JSON] = {}
        self._last_number: int | None = None
        self._gap = False
        self._usage: Usage | None = None
        self._reason = ""
        self._refusal: list[str] = []
        self._model: str | None = None
        self.done = False

    def feed(self, payload: JSON, event: str = "") -> list[Chunk]:
        """The chunks of one event. Raises `LLMError` for an error inside the stream and for what is no object."""
        data = as_table(payload)
        if data is None:
            raise LLMError(f"{self._who} sent an event that is no JSON object", "MALFORMED_RESPONSE")
        kind = as_text(data.get("type")) or event
        if kind == "error" or data.get("error"):
            raise self._error(data if data.get("error") else {"error": data})
        if (response := as_table(data.get("response"))) is not None:
            self._response(response, final=kind in FINAL)
        self._number(data.get("sequence_number"))
        self._item(kind, data)
        return self._reply.take()

    def _number(self, number: JSON) -> None:
        """Events are numbered; a number left out means that some got lost on the way."""
        if isinstance(number, int) and not isinstance(number, bool):
            self._gap = self._gap or (self._last_number is not None and number > self._last_number + 1)
            self._last_number = number

    def _item(self, kind: str, data: Table) -> None:
        item = as_table(data.get("item")) or {}
        item_id = as_text(data.get("item_id")) or as_text(item.get("id"))
        place: Place = (data.get("output_index", item_id),)
        self._places.setdefault(item_id, place)
        part: Place = (*place, data.get("content_index", 0))
        piece = as_text(data.get("delta"))
        match kind:
            case "response.output_item.added":
                self._added(place, item)
            case "response.output_item.done":
                self._whole(place, item)
            case "response.output_text.delta":
                self._add("text", part, piece)
            case "response.output_text.done":
                self._settle("text", part, as_text(data.get("text")))
            # Pieces of a call whose opening got lost have no id; the whole call follows.
            case "response.function_call_arguments.delta" if place in self._drafts:
                self._add("tool-call", place, piece)
            case "response.function_call_arguments.done" if place in self._drafts:
                self._settle("tool-call", place, as_text(data.get("arguments")))
            case "response.reasoning_summary_text.delta":
                self._think(place, piece, data.get("summary_index"))
            case "response.reasoning_text.delta":
                self._think(place, piece, data.get("content_index"))
            case "response.refusal.delta":
                self._refusal.append(piece)
            case "response.refusal.done" if not self._refusal:
                self._refusal.append(as_text(data.get("refusal")))
            case _:
                return

    def _draft(self, kind: Literal["text", "reasoning", "tool-call"], place: Place) -> Draft:
        draft = self._drafts.get(place)
        if draft is None:
            draft = self._drafts[place] = self._reply.open(kind)
        return draft

    def _add(self, kind: Literal["text", "reasoning", "tool-call"], place: Place, piece: str) -> None:
        if piece:
            draft = self._draft(kind, place)
            if draft.kind == kind and not draft.closed:
                self._reply.add(draft, piece)

    def _think(self, place: Place, piece: str, part: JSON) -> None:
        if self._summary_part.setdefault(place, part) != part:
            self._summary_part[place] = part
            self._add("reasoning", place, "\n\n")
        self._add("reasoning", place, piece)

    def _settle(self, kind: Literal["text", "tool-call"], place: Place, whole: str) -> None:
        """Bring a block to what the server says it is; the pieces of some got lost."""
        if not whole:
            return
        draft = self._draft(kind, place)
        if draft.kind != kind or draft.closed:
            return
        if whole.startswith(draft.text):
            self._add(kind, place, whole[len(draft.text) :])
        else:
            draft.parts = [whole]

    def _added(self, place: Place, item: Table) -> None:
        if item.get("type") == "function_call" and place not in self._drafts:
            name, call_id = as_text(item.get("name")), as_text(item.get("call_id")) or as_text(item.get("id"))
            draft = self._drafts[place] = self._reply.open("tool-call", call_id=call_id, name=name)
            self._reply.add(draft, _arguments(item))

    def _whole(self, place: Place, item: Table) -> None:
        """An item that is finished: what is missing of it is added, then its blocks are closed."""
        match item.get("type"):
            case "message":
                phase = {"phase": item["phase"]} if item.get("phase") else {}
                for index, part in enumerate(map(as_table, as_items(item.get("content")))):
                    self._part((*place, index), part or {}, phase)
            case "function_call":
                self._added(place, item)
                self._settle("tool-call", place, _arguments(item))
                draft = self._drafts[place]
                draft.name = draft.name or as_text(item.get("name"))
                self._reply.close(draft)
            case "reasoning":
                self._thought(place, item)
            case _:
                return

    def _part(self, place: Place, part: Table, beside: Table) -> None:
        if part.get("type") == "refusal":
            self._refusal = [as_text(part.get("refusal"))]
            return
        self._settle("text", place, as_text(part.get("text")))
        if (draft := self._drafts.get(place)) is not None:
            self._keep(draft, beside)
            self._reply.close(draft)

    def _thought(self, place: Place, item: Table) -> None:
        kept = {name: item[name] for name in REPLAYED if item.get(name) is not None}
        if not kept.get("content"):
            kept.pop("content", None)
        text = "\n\n".join(_texts(item, "summary")) or "\n\n".join(_texts(item, "content"))
        if place not in self._drafts:
            if not text and not kept.get("encrypted_content"):
                return
            self._draft("reasoning", place)
            self._add("reasoning", place, text)
        draft = self._drafts[place]
        # Thinking that the server cannot read again is not worth sending.
        if kept.get("encrypted_content") or kept.get("content"):
            self._keep(draft, kept)
        self._reply.close(draft)

    def _keep(self, draft: Draft, beside: Table) -> None:
        if beside:
            self._beside[draft.index] = beside

    def _response(self, response: Table, *, final: bool) -> None:
        self._model = as_text(response.get("model")) or self._model
        if not final:
            return
        self.done = True
        if (usage := as_table(response.get("usage"))) is not None:
            self._usage = read_usage(usage)
        status = as_text(response.get("status"))
        if response.get("error") or status == "failed":
            raise self._error({"error": response.get("error") or {"code": "server_error", "message": ""}})
        self._reconcile([item for item in map(as_table, as_items(response.get("output"))) if item is not None])
        details = as_table(response.get("incomplete_details")) or {}
        # A whole status is told apart by what it holds: text or calls.
        finished = status in ("completed", "")
        self._reason = "" if finished else (as_text(details.get("reason")) or status).lower()
        if finished and self._reply.has_blocks:
            self._reason = "tool_calls" if self._reply.calls else "stop"

    def _reconcile(self, output: list[Table]) -> None:
        """Take from the final response what did not come before it; its positions need not be those of the stream."""
        takes_new = self._gap or not self._reply.has_blocks
        for index, item in enumerate(output):
            known = self._places.get(as_text(item.get("id")))
            if known is not None or takes_new:
                self._whole(known or ("final", index), item)

    def _error(self, holder: Table) -> LLMError:
        code = (as_table(holder.get("error")) or {}).get("code")
        error = in_band(holder, who=self._who) or LLMError(f"{self._who} broke off", "SERVER")
        return LLMError(error.message, "CONTENT_FILTER", hint=error.hint) if code in POLICIES else error

    def end(self, *, done: bool) -> list[Chunk]:
        """Close the reply: block ends, usage, finish. Raises `STREAM_CLOSED` when no end was marked."""
        if not done and not self.done:
            raise LLMError(f"{self._who} closed the stream before the reply was complete", "STREAM_CLOSED")
        finish = finish_of(
            self._reason,
            self._reply,
            who=self._who,
            model=self._model,
            refusal="".join(self._refusal),
            replay_state=self._replay_state(),
        )
        self._reply.close_all()
        usage = [] if self._usage is None else [UsageReport(self._usage)]
        return [*self._reply.take(), *usage, finish]

    def _replay_state(self) -> JSON:
        """What goes back beside each block, in the envelope that the assembler keeps in step with the blocks."""
        if not self._beside:
            return None
        blocks: list[Any] = [self._beside.get(draft.index) for draft in self._reply.drafts]
        return {"responses": self._origin, "blocks": blocks}

    def complete_body(self, payload: JSON) -> list[Chunk]:
        """The chunks of a whole, unstreamed response."""
        table = as_table(payload) or {}
        if table.get("object") != "response" and not table.get("error") and "output" not in table:
            raise LLMError(f"{self._who} answered with JSON that is no response", "ENDPOINT", hint=HINTS["ENDPOINT"])
        self._response(table, final=True)
        return [*self._reply.take(), *self.end(done=True)]


def _arguments(item: Table) -> str:
    arguments = item.get("arguments")
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json.dumps(arguments, ensure_ascii=False)


def _texts(item: Table, member: str) -> Iterator[str]:
    for part in map(as_table, as_items(item.get(member))):
        if part is not None and (text := as_text(part.get("text"))):
            yield text


def read_usage(usage: Table) -> Usage:
    """Disjoint counts: `input_tokens` of the wire includes what was read from and written to the cache."""
    total = as_number(usage.get("input_tokens"))
    details = as_table(usage.get("input_tokens_details")) or {}
    cached = min(as_number(details.get("cached_tokens")), total)
    written = min(as_number(details.get("cache_write_tokens")), total - cached)
    output_details = as_table(usage.get("output_tokens_details")) or {}
    return Usage(
        input_tokens=total - cached - written,
        output_tokens=as_number(usage.get("output_tokens")),
        cache_read_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=as_number(output_details.get("reasoning_tokens")),
    )

"""Chat completions, incoming: wire objects to chunks, with every oddity of compatible servers. No input or output.

One decoder serves one reply. `feed` takes a parsed stream event (or a whole completion), `end` closes the reply.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from app.llm.adapters.reply import Draft, ReplyWriter, finish_of
from app.llm.adapters.wire import Table, as_items, as_number, as_table, as_text
from app.llm.failures import HINTS, in_band
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.stream import Chunk, UsageReport
from app.schema.usage import Usage

_CLOSER = "</think>"
_OPENER = "<think>"


class _Call:
    """A call in the making. `wire_id` is the id the server gave it, "" until it gives one."""

    __slots__ = ("draft", "slot", "wire_id")

    def __init__(self, draft: Draft, slot: str, wire_id: str) -> None:
        self.draft = draft
        self.slot = slot
        self.wire_id = wire_id

    def is_followed_by(self, name: str) -> bool:
        """Whether a fragment with this name, and nothing else to tell it apart, starts the next call."""
        known = self.draft.name
        return bool(name and known) and (self.draft.complete or not name.startswith(known))


class ChatDecoder:
    done = False
    """The end marker of this dialect is the stream's own `[DONE]`."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._reply = ReplyWriter()
        self._text: Draft | None = None
        self._reasoning: Draft | None = None
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_slot: dict[str, _Call] = {}
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._refusal: list[str] = []
        self._model: str | None = None
        self._thinking = _ThinkSplitter()

    def feed(self, payload: JSON, event: str = "") -> list[Chunk]:
        """The chunks of one event. Raises `LLMError` for an error inside the stream and for what is no object."""
        data = as_table(payload)
        if data is None:
            raise LLMError(f"{self._who} sent an event that is no JSON object", "MALFORMED_RESPONSE")
        if (error := in_band(data, who=self._who)) is not None:
            raise error
        if isinstance(model := data.get("model"), str) and model:
            self._model = model
        self._count(data)
        # A second choice was not asked for; some servers send one all the same.
        choice = as_table(next(iter(as_items(data.get("choices"))), None))
        if choice is not None:
            self._choice(choice)
        return self._reply.take()

    def _count(self, holder: Table) -> None:
        if (usage := as_table(holder.get("usage"))) is not None:
            self._usage = read_usage(usage)

    def _choice(self, choice: Table) -> None:
        self._count(choice)
        if (delta := as_table(choice.get("delta") or choice.get("message"))) is not None:
            self._delta(delta)
        if isinstance(text := choice.get("text"), str):
            self._add_text(text)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish = reason.lower()

    def _delta(self, delta: Table) -> None:
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thinking, str) and thinking:
            self._add_reasoning(thinking)
        for is_thinking, text in _parts(delta.get("content")):
            (self._add_reasoning if is_thinking else self._add_text)(text)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._refusal.append(refusal)
        calls = delta.get("tool_calls")
        pieces = [piece for item in as_items(calls) or [calls] if (piece := as_table(item)) is not None]
        if not pieces and (legacy := as_table(delta.get("function_call"))) is not None:
            pieces = [{"index": 0, "function": legacy}]
        for piece in pieces:
            self._add_call(piece)

    def _add_text(self, text: str) -> None:
        for is_thinking, piece in self._thinking.feed(text):
            (self._add_reasoning if is_thinking else self._emit_text)(piece)

    def _emit_text(self, text: str) -> None:
        if self._text is None:
            self._text = self._reply.open("text")
        self._reply.add(self._text, text)

    def _add_reasoning(self, text: str) -> None:
        if self._reasoning is None:
            self._reasoning = self._reply.open("reasoning")
        self._reply.add(self._reasoning, text)

    def _add_call(self, piece: Table) -> None:
        fields = as_table(piece.get("function")) or piece
        call_id, name = as_text(piece.get("id")), as_text(fields.get("name"))
        arguments = fields.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        draft = self._route(call_id, _slot(piece.get("index")), name).draft
        # A name arrives once, repeated whole, or (rarely) in growing prefixes; the longest is the name.
        if name.startswith(draft.name):
            draft.name = name
        self._reply.add(draft, arguments)

    def _route(self, call_id: str, slot: str, name: str) -> _Call:
        """The call a fragment belongs to, perhaps a new one; ids are stronger than indexes (`slot`, "" = none).

        Servers send all indexes 0, none, from 1, as strings, the id on every fragment, only later, twice, or never.
        """
        bound = self._by_slot.get(slot) if slot else next(reversed(self._calls), None)
        if not call_id:
            return self._open_call(call_id, slot) if bound is None or bound.is_followed_by(name) else bound
        if slot and bound is not None and bound.wire_id == call_id:
            return bound
        known = self._by_id.get(call_id)
        if known is not None:
            if slot and known.slot and slot != known.slot and name and known.draft.complete:
                return self._open_call(call_id, slot)
            self._by_slot[slot] = known
            return known
        if bound is not None and not bound.wire_id and (slot or not name):
            bound.wire_id = bound.draft.id = call_id
            self._by_id[call_id] = bound
            return bound
        return self._open_call(call_id, slot)

    def _open_call(self, call_id: str, slot: str) -> _Call:
        call = _Call(self._reply.open("tool-call", call_id=call_id), slot, call_id)
        self._calls.append(call)
        self._by_id.setdefault(call_id or call.draft.id, call)
        self._by_slot[slot] = call
        return call

    def end(self, *, done: bool) -> list[Chunk]:
        """Close the reply: block ends, usage, finish. `done` says that the server marked the end of its stream.

        Raises `STREAM_CLOSED` when nothing proves that the reply is complete.
        """
        for is_thinking, piece in self._thinking.flush():
            (self._add_reasoning if is_thinking else self._emit_text)(piece)
        if not self._finish and not done and not (self._usage and self._reply.has_blocks):
            raise LLMError(f"{self._who} closed the stream before the reply was complete", "STREAM_CLOSED")
        finish = finish_of(
            self._finish or "", self._reply, who=self._who, model=self._model, refusal="".join(self._refusal)
        )
        self._reply.close_all()
        usage = [] if self._usage is None else [UsageReport(self._usage)]
        return [*self._reply.take(), *usage, finish]

    def complete_body(self, payload: JSON) -> list[Chunk]:
        """The chunks of a whole, unstreamed completion."""
        chunks = self.feed(payload)
        if "choices" not in (as_table(payload) or {}):
            text = f"{self._who} answered with JSON that is no completion: it has no `choices`"
            raise LLMError(text, "ENDPOINT", hint=HINTS["ENDPOINT"])
        return [*chunks, *self.end(done=True)]


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Disjoint counts from a usage object: cached tokens are taken out of the prompt count.

    Cached tokens stand in `prompt_tokens_details.cached_tokens` (OpenAI) or `prompt_cache_hit_tokens` (DeepSeek).
    """
    prompt = as_number(usage.get("prompt_tokens"))
    details = as_table(usage.get("prompt_tokens_details")) or {}
    cached = as_number(details.get("cached_tokens")) or as_number(usage.get("prompt_cache_hit_tokens"))
    cached = min(cached, prompt)
    output_details = as_table(usage.get("completion_tokens_details")) or {}
    return Usage(
        input_tokens=prompt - cached,
        output_tokens=as_number(usage.get("completion_tokens")),
        cache_read_tokens=cached,
        reasoning_tokens=as_number(output_details.get("reasoning_tokens")),
    )


def _slot(index: JSON) -> str:
    return str(index) if isinstance(index, int | str) and not isinstance(index, bool) else ""


def _parts(content: JSON) -> Iterator[tuple[bool, str]]:
    """(is thinking, text) of a content that is a text or a list of parts (Mistral's thinking is a part of its own)."""
    if isinstance(content, str) and content:
        yield False, content
    for part in map(as_table, as_items(content)):
        if part is None:
            continue
        if text := as_text(part.get("text")):
            yield False, text
        for thought in map(as_table, as_items(part.get("thinking"))):
            if thought is not None and (text := as_text(thought.get("text"))):
                yield True, text


class _ThinkSplitter:
    """Routes a leading `<think>…</think>` of inline-thinking models to reasoning while the text streams."""

    def __init__(self) -> None:
        self._state: Literal["start", "thinking", "gap", "text"] = "start"
        self._held = ""

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """(is thinking, text) of what can be told by now; the beginning of a tag is held back."""
        self._held += text
        pieces: list[tuple[bool, str]] = []
        if self._state == "start":
            lead = self._held.lstrip()
            if lead.startswith(_OPENER):
                self._state, self._held = "thinking", lead.removeprefix(_OPENER)
            elif not _OPENER.startswith(lead):
                self._state = "text"
        if self._state == "thinking":
            thought, closer, rest = self._held.partition(_CLOSER)
            if closer:
                self._state, self._held = "gap", rest
            else:
                keep = next((n for n in range(len(_CLOSER) - 1, 0, -1) if thought.endswith(_CLOSER[:n])), 0)
                thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
            pieces.append((True, thought))
        if self._state == "gap":
            self._held = self._held.lstrip("\n")
            self._state = "text" if self._held else "gap"
        if self._state == "text":
            pieces.extend(self.flush())
        return [piece for piece in pieces if piece[1]]

    def flush(self) -> list[tuple[bool, str]]:
        held, self._held = self._held, ""
        return [(self._state == "thinking", held)] if held else []

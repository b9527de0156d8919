"""Gemini's own dialect, incoming: `GenerateContentResponse` objects to chunks. No input or output."""

from __future__ import annotations

from app.llm.adapters.reply import Draft, ReplyWriter, finish_of
from app.llm.adapters.wire import Table, as_items, as_number, as_table, as_text, dumps
from app.llm.failures import HINTS, in_band
from app.schema.errors import LLMError, LLMFailure
from app.schema.message import JSON
from app.schema.stream import Chunk, Finish, UsageReport
from app.schema.usage import Usage


class GeminiDecoder:
    done = False
    """The wire has no end marker; the body ends."""

    def __init__(self, who: str, origin: str) -> None:
        self._who = who
        self._origin = origin
        self._reply = ReplyWriter()
        self._current: Draft | None = None
        self._signatures: dict[int, str] = {}
        self._usage: Usage | None = None
        self._finish = ""
        self._why = ""
        self._blocked = ""
        self._model: str | None = None

    def feed(self, payload: JSON, event: str = "") -> list[Chunk]:
        """The chunks of one event. Raises `LLMError` for an error inside the stream and for what is no object."""
        data = as_table(payload)
        if data is None:
            raise LLMError(f"{self._who} sent an event that is no JSON object", "MALFORMED_RESPONSE")
        if (error := in_band(data, who=self._who)) is not None:
            raise error
        self._model = as_text(data.get("modelVersion")) or self._model
        if (usage := as_table(data.get("usageMetadata"))) is not None:
            self._usage = read_usage(usage)
        feedback = as_table(data.get("promptFeedback")) or {}
        self._blocked = as_text(feedback.get("blockReason")) or self._blocked
        # A second candidate was not asked for.
        candidate = as_table(next(iter(as_items(data.get("candidates"))), None))
        if candidate is not None:
            self._candidate(candidate)
        return self._reply.take()

    def _candidate(self, candidate: Table) -> None:
        content = as_table(candidate.get("content")) or {}
        for part in map(as_table, as_items(content.get("parts"))):
            if part is not None:
                self._part(part)
        self._finish = as_text(candidate.get("finishReason")).lower() or self._finish
        self._why = as_text(candidate.get("finishMessage")) or self._why

    def _part(self, part: Table) -> None:
        signature = as_text(part.get("thoughtSignature"))
        if (call := as_table(part.get("functionCall"))) is not None:
            self._call(call, signature)
            return
        text = as_text(part.get("text"))
        kind = "reasoning" if part.get("thought") is True else "text"
        if text:
            if self._current is None or self._current.kind != kind:
                self._current = self._reply.open(kind)
            self._reply.add(self._current, text)
        if signature and kind == "text" and self._reply.has_blocks:
            # Often alone in an empty text at the end: it belongs to the text before it, or is a text of its own.
            if self._current is None or self._current.kind != "text":
                self._current = self._reply.open("text")
            self._signatures[self._current.index] = signature
            # Signed and unsigned text, or two signed ones, must go back apart.
            self._current = None

    def _call(self, call: Table, signature: str) -> None:
        given = call.get("args")
        arguments = given if isinstance(given, str) else dumps(given or {}).decode()
        draft = self._reply.open("tool-call", call_id=as_text(call.get("id")), name=as_text(call.get("name")))
        self._reply.add(draft, arguments)
        self._current = draft
        if signature:
            self._signatures[draft.index] = signature

    def end(self, *, done: bool) -> list[Chunk]:
        """Close the reply. Raises `STREAM_CLOSED` when no finish reason and no verdict on the prompt has come."""
        if not self._finish and not self._blocked:
            raise LLMError(f"{self._who} closed the stream before the reply was complete", "STREAM_CLOSED")
        finish = self._finish_chunk()
        self._reply.close_all()
        usage = [] if self._usage is None else [UsageReport(self._usage)]
        return [*self._reply.take(), *usage, finish]

    def _finish_chunk(self) -> Finish:
        if self._blocked and not self._reply.has_blocks:
            text = f"{self._who} refused the prompt: {self._blocked}"
            return Finish("error", LLMFailure(text, "CONTENT_FILTER"), model=self._model)
        finish = finish_of(
            self._finish, self._reply, who=self._who, model=self._model, replay_state=self._replay_state()
        )
        if finish.failure is None or not self._why:
            return finish
        return Finish(
            "error", LLMFailure(f"{finish.failure.message}: {self._why}", finish.failure.code), model=self._model
        )

    def _replay_state(self) -> JSON:
        if not self._signatures:
            return None
        blocks = [self._signatures.get(draft.index) for draft in self._reply.drafts]
        return {"gemini": self._origin, "blocks": blocks}

    def complete_body(self, payload: JSON) -> list[Chunk]:
        """A whole reply: one response, or the list of them that the endpoint gives without `alt=sse`."""
        responses = as_items(payload) or [payload]
        chunks = [chunk for response in responses for chunk in self.feed(response)]
        known = ("candidates", "promptFeedback", "usageMetadata")
        if not any(name in (as_table(response) or {}) for response in responses for name in known):
            raise LLMError(f"{self._who} answered with JSON that is no reply", "ENDPOINT", hint=HINTS["ENDPOINT"])
        return [*chunks, *self.end(done=True)]


def read_usage(usage: Table) -> Usage:
    """Disjoint counts: cached tokens are part of the prompt count, thoughts are counted beside the answer."""
    prompt = as_number(usage.get("promptTokenCount")) + as_number(usage.get("toolUsePromptTokenCount"))
    cached = min(as_number(usage.get("cachedContentTokenCount")), prompt)
    thoughts = as_number(usage.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=prompt - cached,
        output_tokens=as_number(usage.get("candidatesTokenCount")) + thoughts,
        cache_read_tokens=cached,
        reasoning_tokens=thoughts,
    )

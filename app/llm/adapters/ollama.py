"""Ollama's own dialect: `/api/chat` in JSON lines, and the one download of a model that is not there yet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

from app.llm.adapters.base import FEATURES, ModelInfo
from app.llm.adapters.http import Account, HTTPAdapter, LineFraming
from app.llm.adapters.ollama_encode import EFFORTS, OllamaEncoder
from app.llm.adapters.reply import Draft, ReplyWriter, finish_of
from app.llm.adapters.wire import Table, as_items, as_number, as_table, as_text, dumps
from app.llm.downloads import DownloadHooks, Progress
from app.llm.failures import HINTS, in_band
from app.llm.models import ModelFacts
from app.llm.transport import Transport
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.request import ModelRequest
from app.schema.stream import Chunk, UsageReport
from app.schema.usage import Usage


class OllamaAdapter(HTTPAdapter):
    """`window` is the user's context window in tokens, `downloads` who is asked before a missing model is pulled,
    `keep_alive` how long a model stays loaded, in Ollama's words (None = as the server likes).
    """

    framing = "lines"
    features = frozenset(FEATURES) - {"caching"}
    efforts = EFFORTS
    option_fields = {  # noqa: RUF012
        "reasoning_effort": ("think",),
        "response_format": ("format",),
        "temperature": ("options",),
        "stop": ("options",),
    }

    def __init__(self, account: Account, transport: Transport, *, route: str, facts: ModelFacts) -> None:
        super().__init__(account, transport, route=route, facts=facts)
        self.window: int | None = None
        self.keep_alive: int | str | None = None
        self.downloads = DownloadHooks()
        self._encoder = OllamaEncoder(route)
        self._asked: set[str] = set()

    def request_url(self, request: ModelRequest) -> str:
        return self.account.url("api/chat")

    def encode(self, request: ModelRequest) -> bytes:
        learned = self.corrections.of(request.config.model)
        return self._encoder.body(request, learned, self.facts, window=self.window, keep_alive=self.keep_alive)

    def decoder(self) -> OllamaDecoder:
        return OllamaDecoder(self.who)

    def models_url(self) -> str:
        return self.account.url("api/tags")

    def read_models(self, payload: JSON) -> Iterable[ModelInfo]:
        table = as_table(payload) or {}
        if not isinstance(table.get("models"), list):
            raise LLMError(f"{self.who} gave no list of models", "ENDPOINT", hint=HINTS["ENDPOINT"])
        for row in map(as_table, as_items(table["models"])):
            if row is not None and (name := as_text(row.get("model")) or as_text(row.get("name"))):
                yield ModelInfo(self.route, name, name)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        """One attempt. A missing model is offered for download once; agreed to, it is pulled and the attempt made."""
        try:
            async with aclosing(super().stream(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except LLMError as error:
            if error.code != "UNKNOWN_MODEL":
                raise
            if not await self._pulled(model := request.config.model):
                error.hint = f"`ollama pull {model}` downloads it, and so does a run with --yes"
                raise
        else:
            return
        async with aclosing(super().stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _pulled(self, model: str) -> bool:
        if model in self._asked:
            return False
        self._asked.add(model)
        if not await self.downloads.consent(f"{self.who} does not have {model} yet. Download it there now?"):
            return False
        await self.pull(model)
        return True

    async def pull(self, model: str) -> None:
        """Let the server download a model, with progress. Raises `LLMError` when it cannot."""
        # A download takes as long as it takes; silence is still bounded.
        timeouts = replace(self.account.timeouts, total_s=None)
        body = dumps({"model": model, "stream": True})
        async with self._transport.request(
            "POST", self.account.url("api/pull"), headers=self.request_headers(), body=body, timeouts=timeouts
        ) as response:
            if response.status != 200:
                raise await self._refusal(response)
            lines = LineFraming(self.who)
            finished = False
            while piece := await response.more():
                for _, payload in lines.feed(piece):
                    finished = self._pull_step(as_table(payload) or {}) or finished
            for _, payload in lines.flush():
                finished = self._pull_step(as_table(payload) or {}) or finished
        if not finished:
            raise LLMError(f"{self.who} broke off the download of {model}", "STREAM_CLOSED")

    def _pull_step(self, step: Table) -> bool:
        """Whether this line of the download says that it is complete."""
        if (error := in_band(step, who=self.who)) is not None:
            raise error
        if total := as_number(step.get("total")):
            self.downloads.progress(Progress("download", as_number(step.get("completed")), total, self.who))
        return step.get("status") == "success"


class OllamaDecoder:
    def __init__(self, who: str) -> None:
        self.done = False
        self._who = who
        self._reply = ReplyWriter()
        self._current: Draft | None = None
        self._usage: Usage | None = None
        self._reason = ""
        self._model: str | None = None

    def feed(self, payload: JSON, event: str = "") -> list[Chunk]:
        """The chunks of one line. Raises `LLMError` for an error inside the stream and for what is no object."""
        data = as_table(payload)
        if data is None:
            raise LLMError(f"{self._who} sent a line that is no JSON object", "MALFORMED_RESPONSE")
        if (error := in_band(data, who=self._who)) is not None:
            raise error
        self._model = as_text(data.get("model")) or self._model
        message = as_table(data.get("message")) or {}
        self._add("reasoning", as_text(message.get("thinking")))
        self._add("text", as_text(message.get("content")))
        for call in map(as_table, as_items(message.get("tool_calls"))):
            if call is not None:
                self._call(call)
        if data.get("done") is True:
            self._close(data)
        return self._reply.take()

    def _add(self, kind: Literal["text", "reasoning"], piece: str) -> None:
        if not piece:
            return
        if self._current is None or self._current.kind != kind:
            self._current = self._reply.open(kind)
        self._reply.add(self._current, piece)

    def _call(self, call: Table) -> None:
        function = as_table(call.get("function")) or {}
        given = function.get("arguments")
        arguments = given if isinstance(given, str) else dumps(given or {}).decode()
        draft = self._reply.open("tool-call", call_id=as_text(call.get("id")), name=as_text(function.get("name")))
        self._reply.add(draft, arguments)
        self._current = draft

    def _close(self, data: Table) -> None:
        self.done = True
        self._reason = as_text(data.get("done_reason")).lower()
        if "eval_count" in data:
            self._usage = Usage(as_number(data.get("prompt_eval_count")), as_number(data.get("eval_count")))

    def end(self, *, done: bool) -> list[Chunk]:
        """Close the reply. Raises `STREAM_CLOSED` when the line that is marked as the last has not come."""
        if not self.done:
            raise LLMError(f"{self._who} closed the stream before the reply was complete", "STREAM_CLOSED")
        # `load` and `unload` answer a request without messages: nothing was said.
        reason = "" if self._reason in ("load", "unload") else self._reason
        finish = finish_of(reason, self._reply, who=self._who, model=self._model)
        self._reply.close_all()
        usage = [] if self._usage is None else [UsageReport(self._usage)]
        return [*self._reply.take(), *usage, finish]

    def complete_body(self, payload: JSON) -> list[Chunk]:
        chunks = self.feed(payload)
        if "message" not in (as_table(payload) or {}):
            raise LLMError(f"{self._who} answered with JSON that is no reply", "ENDPOINT", hint=HINTS["ENDPOINT"])
        return [*chunks, *self.end(done=True)]

"""The three-step protocol of agenticSeek's model server: set the model, start a reply, ask for what there is so far.

`POST /setup {"model"}`, `POST /generate {"messages"}`, `GET /get_updated_sentence` → `{"sentence", "is_complete"}` or
`{"error"}`. Text only: the protocol has no tools, no pictures, no usage, and no way to stop a reply that is being made.
`python -m app.frontends.polling_server` serves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.llm.adapters.http import HTTPAdapter
from app.llm.adapters.reply import Draft, ReplyWriter, finish_of
from app.llm.adapters.wire import as_table, dumps
from app.llm.failures import in_band
from app.llm.models import ModelFacts
from app.schema.errors import LLMError
from app.schema.message import JSON, Message
from app.schema.request import ModelRequest
from app.schema.stream import Chunk

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 1.0
"""Waits between questions start small and double, so that a short reply comes at once and a long one costs little."""


class PollingAdapter(HTTPAdapter):
    features = frozenset({"stream"})

    @classmethod
    def limits(cls, facts: ModelFacts) -> ModelFacts:
        return replace(facts, images=False, tools=False, parallel_tools=False, reasoning=False, json_schema=False)

    def request_url(self, request: ModelRequest) -> str:
        return self.account.url("generate")

    def encode(self, request: ModelRequest) -> bytes:
        return dumps({"messages": list(_messages(request))})

    def decoder(self) -> Any:
        raise NotImplementedError("this protocol has no stream to decode")

    async def list_models(self, route: str) -> tuple[()]:
        """The protocol cannot tell what it serves."""
        return ()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        setup = dumps({"model": request.config.model})
        await self._ask("POST", self.account.url("setup"), setup)
        await self._ask("POST", self.request_url(request), self.encode(request))
        snapshots = _Snapshots(self.who)
        wait_s, silent_s = FIRST_WAIT_S, 0.0
        while not snapshots.complete:
            heard = snapshots.feed(await self._ask("GET", self.account.url("get_updated_sentence")))
            for chunk in heard:
                yield chunk
            if snapshots.complete:
                break
            silent_s = 0.0 if heard else silent_s + wait_s
            if silent_s > self.account.timeouts.first_byte_s:
                raise LLMError(f"{self.who} has added nothing for {silent_s:.0f} s", "TIMEOUT")
            wait_s = FIRST_WAIT_S if heard else min(2 * wait_s, LONGEST_WAIT_S)
            await asyncio.sleep(wait_s)
        for chunk in snapshots.end():
            yield chunk

    async def _ask(self, method: str, url: str, body: bytes | None = None) -> Mapping[str, JSON]:
        try:
            return self._checked(await self.exchange(method, url, body))
        except LLMError as error:
            # The original server says so with status 402, ours with 409.
            if "already in progress" not in error.message:
                raise
            hint = "wait until that has finished"
            raise LLMError(f"{self.who} is busy with another reply", "RATE_LIMIT", hint=hint) from error

    def _checked(self, payload: JSON) -> Mapping[str, JSON]:
        table = as_table(payload)
        if table is None:
            raise LLMError(f"{self.who} answered with something that is no JSON object", "MALFORMED_RESPONSE")
        if (failure := in_band(table, who=self.who)) is not None:
            raise failure
        return table


class _Snapshots:
    """Turns the growing sentence into chunks. A sentence that was rewritten instead of grown comes whole at the end."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._reply = ReplyWriter()
        self._draft: Draft | None = None
        self._sentence = ""
        self.complete = False

    def feed(self, answer: Mapping[str, JSON]) -> list[Chunk]:
        sentence, complete = answer.get("sentence"), answer.get("is_complete")
        if not isinstance(sentence, str) or not isinstance(complete, bool):
            raise LLMError(f"{self._who} gave no sentence and is_complete", "ENDPOINT", hint="check base_url")
        self._sentence, self.complete = sentence, complete
        shown = self._draft.text if self._draft else ""
        if sentence.startswith(shown) and len(sentence) > len(shown):
            self._draft = self._draft or self._reply.open("text")
            self._reply.add(self._draft, sentence.removeprefix(shown))
        return self._reply.take()

    def end(self) -> list[Chunk]:
        if self._draft is not None:
            self._draft.parts = [self._sentence]
        finish = finish_of("stop" if self._sentence else "", self._reply, who=self._who, model=None)
        self._reply.close_all()
        return [*self._reply.take(), finish]


def _messages(request: ModelRequest) -> Iterator[dict[str, str]]:
    if request.system:
        yield {"role": "system", "content": request.system}
    for message in request.messages:
        yield {"role": message.role, "content": _text(message)}


def _text(message: Message) -> str:
    """What the message says. Calls and results are text by now: `limits` says that the dialect knows no tools."""
    return "".join((message.text, *(result.text for result in message.tool_results)))

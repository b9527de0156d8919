"""The Anthropic Messages dialect: Anthropic's own service, and the many servers that offer `/v1/messages`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import quote, urlsplit

from app.llm.adapters.base import ModelInfo
from app.llm.adapters.http import Account, HTTPAdapter
from app.llm.adapters.messages_decode import PAUSED, MessagesDecoder
from app.llm.adapters.messages_encode import EFFORTS, MessagesEncoder
from app.llm.adapters.wire import as_table, as_text
from app.llm.models import ModelFacts
from app.llm.transport import Transport
from app.schema.errors import LLMError
from app.schema.message import Block, ModelSource, create_message
from app.schema.request import ModelRequest
from app.schema.stream import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from app.schema.usage import Usage

VERSION = "2023-06-01"
MOST_PAUSES = 5
MOST_PAGES = 20


class AnthropicAdapter(HTTPAdapter):
    efforts = EFFORTS
    option_fields = {  # noqa: RUF012
        "reasoning_effort": ("thinking", "output_config"),
        "response_format": ("output_config",),
        "cache": ("cache_control",),
        "stop": ("stop_sequences",),
    }

    def __init__(self, account: Account, transport: Transport, *, route: str, facts: ModelFacts) -> None:
        super().__init__(account, transport, route=route, facts=facts)
        self._encoder = MessagesEncoder(route)

    def request_url(self, request: ModelRequest) -> str:
        return self.account.url("messages")

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        """All pages of the listing."""
        found: dict[str, ModelInfo] = {}
        after = ""
        for _ in range(MOST_PAGES):
            page = self.account.url("models") + "?limit=1000" + (f"&after_id={quote(after)}" if after else "")
            payload = as_table(await self.exchange("GET", page)) or {}
            found.update((info.id, info) for info in self.read_models(payload))
            after = as_text(payload.get("last_id"))
            if payload.get("has_more") is not True or not after:
                break
        return tuple(found.values())

    def own_headers(self) -> dict[str, str]:
        return {"anthropic-version": VERSION}

    def key_headers(self, key: str) -> dict[str, str]:
        """Anthropic takes `x-api-key` alone; of the servers that imitate it some look for a bearer authorization."""
        host = urlsplit(self.account.base_url).hostname or ""
        imitates = not host.endswith("anthropic.com")
        return {"x-api-key": key} | ({"Authorization": f"Bearer {key}"} if imitates else {})

    def encode(self, request: ModelRequest) -> bytes:
        return self._encoder.body(request, self.corrections.of(request.config.model), self.facts)

    def decoder(self) -> MessagesDecoder:
        return MessagesDecoder(self.who)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        """One attempt; a turn that the server pauses is continued with what it has said, and comes as one reply."""
        spent: Usage | None = None
        said: list[Block] = []
        first = 0
        for _ in range(MOST_PAUSES):
            blocks, paused = 0, False
            async with aclosing(super().stream(_continued(request, said, self.route))) as chunks:
                async for chunk in chunks:
                    match chunk:
                        case Finish():
                            paused = chunk.failure is not None and chunk.failure.code == PAUSED
                            if not paused:
                                if spent is not None:
                                    yield UsageReport(spent)
                                yield chunk
                        case UsageReport(usage):
                            spent = usage if spent is None else spent + usage
                        case BlockEnd(index, block):
                            blocks = max(blocks, index + 1)
                            said.append(block)
                            yield replace(chunk, index=first + index)
                        case BlockStart(index) | TextDelta(index) | ReasoningDelta(index) | ToolCallDelta(index):
                            yield replace(chunk, index=first + index)
            if not paused:
                return
            first += blocks
        raise LLMError(f"{self.who} paused its turn {MOST_PAUSES} times", "SERVER")


def _continued(request: ModelRequest, said: list[Block], route: str) -> ModelRequest:
    """The request with what the paused turn has said so far as its last message."""
    if not said:
        return request
    turn = create_message("assistant", said, ModelSource(route, request.config.model))
    return replace(request, messages=(*request.messages, turn))

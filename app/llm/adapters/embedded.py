"""The model inside the product: fetched once, served by a child process, spoken to by the chat-completions dialect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from app import paths
from app.llm.adapters.accounts import quirks_of
from app.llm.adapters.base import LLMAdapter, ModelInfo, ProviderInfo
from app.llm.adapters.http import Account
from app.llm.adapters.openai_chat import OpenAIChatAdapter
from app.llm.downloads import DownloadHooks
from app.llm.embedded.catalog import EmbeddedModel
from app.llm.embedded.fetch import ensure_model
from app.llm.embedded.server import EmbeddedServer
from app.llm.models import ModelFacts, Told
from app.llm.probe import Prober
from app.llm.transport import Timeouts, Transport
from app.schema.request import ModelRequest
from app.schema.stream import Chunk

MAX_OUTPUT_TOKENS = 1536
"""Two minutes or so on two cores; a small model that loses its way writes to the limit."""


def facts_of(row: EmbeddedModel) -> ModelFacts:
    """What the product may ask of an embedded model: few tools, one call at a time, a call each time."""
    return ModelFacts(
        known=True,
        context_window=row.context_window,
        images=False,
        tools=row.max_tools > 0,
        parallel_tools=False,
        reasoning=False,
        json_schema=True,
        max_tools=row.max_tools,
        tool_choice_required=row.tool_choice == "required",
    )


class EmbeddedAdapter(LLMAdapter):
    """Starts its server at the first request and ends it at `close`. One request at a time: the model has one slot."""

    features = frozenset({"stream", "usage", "caching", "cancel"})

    def __init__(
        self,
        row: EmbeddedModel,
        transport: Transport,
        *,
        route: str,
        timeouts: Timeouts,
        hooks: DownloadHooks | None = None,
    ) -> None:
        self.row = row
        self.facts = facts_of(row)
        self._transport = transport
        self._route = route
        self._timeouts = timeouts
        self._hooks = hooks or DownloadHooks()
        self._starting = asyncio.Lock()
        self._server: EmbeddedServer | None = None
        self._chat: OpenAIChatAdapter | None = None

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(route, "embedded model", "embedded", local=True)

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        return (ModelInfo(route, self.row.name, self.row.name, context_window=self.row.context_window),)

    async def resolve_model(self, route: str, model: str) -> ModelInfo:
        return ModelInfo(
            route, model, model, context_window=self.row.context_window, max_output_tokens=MAX_OUTPUT_TOKENS
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        chat = await self._ready()
        async for chunk in chat.stream(request):
            yield chunk

    async def told(self, prober: Prober) -> Told | None:
        """What the running model tells of itself, for a file of the user's own, whose template nobody has looked at."""
        return await prober.ask((await self._ready()).account, self.row.name)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None
            self._chat = None

    async def _ready(self) -> OpenAIChatAdapter:
        async with self._starting:
            if self._server is not None and not self._server.alive:
                await self.close()
            if self._chat is None:
                path = await ensure_model(
                    self.row, paths.runtime_home(), consent=self._hooks.consent, progress=self._hooks.progress
                )
                self._server = EmbeddedServer(
                    path, self.row, context=self.row.context_window, progress=self._hooks.progress
                )
                base_url = await self._server.start()
                account = Account(
                    "embedded",
                    "the embedded model",
                    base_url,
                    self._server.api_key,
                    local=True,
                    timeouts=self._timeouts,
                    quirks=quirks_of("embedded"),
                )
                self._chat = OpenAIChatAdapter(account, self._transport, route=self._route, facts=self.facts)
            return self._chat

"""The OpenAI Responses dialect, stateless; OpenAI's own service, Azure's, and servers that offer `/responses`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from app.llm.adapters.http import Account, HTTPAdapter
from app.llm.adapters.responses_decode import ResponsesDecoder
from app.llm.adapters.responses_encode import EFFORTS, MIN_OUTPUT_TOKENS, ResponsesEncoder
from app.llm.models import ModelFacts
from app.llm.transport import Transport
from app.schema.request import ModelRequest
from app.schema.stream import Chunk, Finish, UsageReport


class ResponsesAdapter(HTTPAdapter):
    efforts = EFFORTS
    option_fields = {  # noqa: RUF012
        "reasoning_effort": ("reasoning",),
        "reasoning_summary": ("reasoning",),
        "response_format": ("text",),
        "replay": ("input",),
    }

    def __init__(self, account: Account, transport: Transport, *, route: str, facts: ModelFacts) -> None:
        super().__init__(account, transport, route=route, facts=facts)
        self._origin = account.base_url.partition("?")[0]
        self._encoder = ResponsesEncoder(self._origin, of_openai=account.vendor in ("openai", "azure"))

    def request_url(self, request: ModelRequest) -> str:
        return self.account.url("responses")

    def encode(self, request: ModelRequest) -> bytes:
        return self._encoder.body(request, self.corrections.of(request.config.model), self.facts)

    def decoder(self) -> ResponsesDecoder:
        return ResponsesDecoder(self.who, self._origin)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        """Some servers (llama.cpp) call a reply completed that their own limit cut; its length tells."""
        cap = max(request.config.max_tokens or 0, MIN_OUTPUT_TOKENS) if request.config.max_tokens else None
        written = 0
        async with aclosing(super().stream(request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, UsageReport):
                    written = chunk.usage.output_tokens
                cut = isinstance(chunk, Finish) and chunk.reason == "stop" and cap is not None and written >= cap
                yield replace(chunk, reason="max-tokens") if cut else chunk

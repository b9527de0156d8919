"""The chat-completions dialect that most vendors and local servers speak."""

from __future__ import annotations

from app.llm.adapters.chat_decode import ChatDecoder
from app.llm.adapters.chat_encode import EFFORTS, ChatEncoder
from app.llm.adapters.http import Account, HTTPAdapter
from app.llm.models import ModelFacts
from app.llm.transport import Transport
from app.schema.request import ModelRequest


class OpenAIChatAdapter(HTTPAdapter):
    # Vendors name the effort `reasoning_effort` in their words and send it under other names.
    option_fields = {"reasoning_effort": ("reasoning_effort", "reasoning", "thinking")}  # noqa: RUF012

    def __init__(self, account: Account, transport: Transport, *, route: str, facts: ModelFacts) -> None:
        super().__init__(account, transport, route=route, facts=facts)
        self.efforts = EFFORTS[account.quirks.effort_style]
        self._encoder = ChatEncoder(route, account.quirks)

    def request_url(self, request: ModelRequest) -> str:
        return self.account.url("chat/completions", model=request.config.model)

    def models_url(self) -> str:
        return f"{self.account.base_url.partition('?')[0]}/models"

    def encode(self, request: ModelRequest) -> bytes:
        return self._encoder.body(
            request,
            self.corrections.of(request.config.model),
            token_field=self.account.quirks.token_field or self.facts.token_field,
            temperature=self.facts.temperature,
            one_call=self.facts.parallel_tools is False and self.account.quirks.parallel_tool_calls,
        )

    def decoder(self) -> ChatDecoder:
        return ChatDecoder(self.who)

"""Google's own dialect for Gemini: `models/…:streamGenerateContent`; Vertex AI by its address, with a bearer token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlsplit

from app.llm.adapters.base import ModelInfo
from app.llm.adapters.gemini_decode import GeminiDecoder
from app.llm.adapters.gemini_encode import EFFORTS, GeminiEncoder
from app.llm.adapters.http import Account, HTTPAdapter
from app.llm.adapters.wire import as_items, as_number, as_table, as_text
from app.llm.failures import HINTS
from app.llm.models import ModelFacts
from app.llm.transport import Transport
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.request import ModelRequest

MOST_PAGES = 20


class GeminiAdapter(HTTPAdapter):
    efforts = EFFORTS
    option_fields = {  # noqa: RUF012
        "reasoning_effort": ("thinkingConfig",),
        "response_format": ("responseJsonSchema",),
        "tool_choice": ("toolConfig",),
        "stop": ("stopSequences",),
    }

    def __init__(self, account: Account, transport: Transport, *, route: str, facts: ModelFacts) -> None:
        super().__init__(account, transport, route=route, facts=facts)
        self._origin = account.base_url.partition("?")[0]
        self._encoder = GeminiEncoder(self._origin)

    def request_url(self, request: ModelRequest) -> str:
        model = request.config.model.removeprefix("models/")
        path = model if model.startswith("tunedModels/") else f"models/{quote(model, safe='')}"
        return f"{self._origin}/{path}:streamGenerateContent?alt=sse"

    def key_headers(self, key: str) -> dict[str, str]:
        if (urlsplit(self._origin).hostname or "").endswith("aiplatform.googleapis.com"):
            return {"Authorization": f"Bearer {key}"}
        return {"x-goog-api-key": key}

    def encode(self, request: ModelRequest) -> bytes:
        return self._encoder.body(request, self.corrections.of(request.config.model), self.facts)

    def sent_fields(self, request: ModelRequest) -> set[str]:
        body = json.loads(self.encode(request))
        return {*body, *body.get("generationConfig", ())}

    def decoder(self) -> GeminiDecoder:
        return GeminiDecoder(self.who, self._origin)

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        """All pages of the listing, without the models that write no text."""
        found: dict[str, ModelInfo] = {}
        token = ""
        for _ in range(MOST_PAGES):
            page = f"{self._origin}/models?pageSize=1000" + (f"&pageToken={quote(token)}" if token else "")
            payload = as_table(await self.exchange("GET", page)) or {}
            found.update((info.id, info) for info in self.read_models(payload))
            token = as_text(payload.get("nextPageToken"))
            if not token:
                break
        return tuple(found.values())

    def read_models(self, payload: JSON) -> Iterable[ModelInfo]:
        table = as_table(payload) or {}
        if not isinstance(table.get("models"), list):
            raise LLMError(f"{self.who} gave no list of models", "ENDPOINT", hint=HINTS["ENDPOINT"])
        for row in map(as_table, as_items(table["models"])):
            if row is None or "generateContent" not in as_items(row.get("supportedGenerationMethods")):
                continue
            name = as_text(row.get("name")).removeprefix("models/")
            if name:
                window, output = (as_number(row.get(key)) or None for key in ("inputTokenLimit", "outputTokenLimit"))
                shown = as_text(row.get("displayName")) or name
                yield ModelInfo(self.route, name, shown, context_window=window, max_output_tokens=output)
